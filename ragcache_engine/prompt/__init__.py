"""Find documents in prompts, cut prompts into segments, and foresee what prompts a chain will write.

| file | holds |
|---|---|
| segments.py | which characters and tokens of a prompt are which document |
| repeats.py | documents that stand in a prompt twice |
| retrievals.py | what was retrieved lately, and which prompt came of it |
| landmarks.py | words inside texts, by which a prompt is known not to contain most of them |
| template.py | a template that a user gives |
| form.py | the texts around the documents of one prompt |
| template_book.py | the form of each chain's last prompt |
| forgotten.py | when which documents were forgotten |
"""

from ragcache_engine.prompt.forgotten import ForgetLog
from ragcache_engine.prompt.repeats import find_repeats, leave_out_repeats
from ragcache_engine.prompt.retrievals import PromptMatch, Retrieval, RetrievalLog
from ragcache_engine.prompt.segments import Span, find_documents, is_too_short, token_segments
from ragcache_engine.prompt.template import Render, Template, as_render
from ragcache_engine.prompt.template_book import Guess, TemplateBook

__all__ = [
    "ForgetLog",
    "Guess",
    "PromptMatch",
    "Render",
    "Retrieval",
    "RetrievalLog",
    "Span",
    "Template",
    "TemplateBook",
    "as_render",
    "find_documents",
    "find_repeats",
    "is_too_short",
    "leave_out_repeats",
    "token_segments",
]
