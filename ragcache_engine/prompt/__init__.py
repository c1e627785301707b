"""Find documents in prompts, cut prompts into segments, and learn the templates behind prompts.

| file | holds |
|---|---|
| segments.py | which characters and tokens of a prompt are which document |
| retrievals.py | what was retrieved lately, and which prompt came of it |
| landmarks.py | words inside texts, by which a prompt is known not to contain most of them |
| template.py | a template that a user gives |
| template_book.py, chain_templates.py | the templates learned, by chain |
| chain_store.py | what is kept of them: the chains of all tenants, within limits |
| learning.py, patterns.py, prompt_parsing.py | how a template is learned from finished prompts |
"""

from ragcache_engine.prompt.retrievals import PromptMatch, Retrieval, RetrievalLog
from ragcache_engine.prompt.segments import Span, find_documents, token_segments
from ragcache_engine.prompt.template import Render, Template, as_render
from ragcache_engine.prompt.template_book import Guess, TemplateBook

__all__ = [
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
    "token_segments",
]
