"""Prompt text <-> segments: which run of the finished prompt is which document."""

from ragcache_engine.prompt.retrievals import Match, Retrieval, RetrievalLog
from ragcache_engine.prompt.segments import Span, find_documents, token_segments

__all__ = ["Match", "Retrieval", "RetrievalLog", "Span", "find_documents", "token_segments"]
