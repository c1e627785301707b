"""Find documents in prompts, cut prompts into segments, and learn the templates behind prompts."""

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
