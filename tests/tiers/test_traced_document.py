"""Where the tokens of a document in a prompt came from; text before it counts too."""

from __future__ import annotations

from ragcache_engine.tiers.borrowing.report import DocumentReuse
from ragcache_engine.tiers.prompt_sources import PromptSources, Reason
from ragcache_engine.tiers.traced_document import trace_document

NOTHING_CACHED = PromptSources((), {})


def test_text_that_was_borrowed_with_a_document_counts_as_borrowed():
    reuse = DocumentReuse("a", 60, "host", borrowed=60, joined=2)
    traced = trace_document("a", 100, 162, NOTHING_CACHED, reuse)
    assert (traced.tokens, traced.borrowed, traced.recomputed) == (62, {"host": 62}, 0)
    assert traced.why == ""


def test_text_between_that_was_computed_is_named():
    reuse = DocumentReuse("a", 60, "host", borrowed=50, recomputed=10)
    traced = trace_document("a", 100, 162, NOTHING_CACHED, reuse)
    assert (traced.tokens, traced.borrowed, traced.recomputed) == (62, {"host": 50}, 10)
    assert traced.why == Reason.JOINT
