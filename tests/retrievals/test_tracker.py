"""A retrieval that the engine was told of is found again in the prompt made from it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from slices import SLICES, TWELVE, WITH, prompt_of

from ragcache_engine import (
    Document,
    MemoryBackend,
    RAGCacheEngine,
    UnknownDocument,
)


def test_documents_retrieved_through_the_engine_are_recognised_in_the_prompt(
    engine: RAGCacheEngine,
):
    with engine.retrieval("What is a slice?") as retrieval:
        retrieval.found([WITH, SLICES])
    usage = engine.generate(prompt_of(SLICES, WITH), options=TWELVE).usage
    assert usage.document_ids == ("slices", "with")


def test_the_time_of_a_retrieval_counts_once(engine: RAGCacheEngine):
    with engine.retrieval("How long?") as retrieval:
        engine.generate(prompt_of(question="busy"), options=TWELVE)  # moves either clock
        retrieval.found([SLICES])
    first = engine.generate(prompt_of(SLICES, question="How long?"), options=TWELVE).usage
    again = engine.generate(prompt_of(SLICES, question="How long?"), options=TWELVE).usage
    assert first.retrieval_s > 0
    assert first.total_s >= first.ttft_s >= first.retrieval_s
    assert again.retrieval_s == 0


def test_a_retrieval_that_fails_is_not_remembered(engine: RAGCacheEngine):
    failed = Document("failed", "Text of a search that broke before it was done. " * 4)
    with suppress(OSError), engine.retrieval("?") as retrieval:
        retrieval.found([failed])
        raise OSError("the search broke")
    assert engine.generate(prompt_of(failed), options=TWELVE).usage.document_ids == ()


def test_another_tenants_search_shows_nowhere(engine_on):
    shared = Document("shared", "The moon pulls the oceans, and the tides follow it. " * 9)
    secret = Document("tenant A: the merger", "Strictly confidential text of tenant A. " * 9)
    engine = engine_on(MemoryBackend(), speculation="on")
    with engine.retrieval("A's?", tenant="A", template="{context}\n\n{question}") as retrieval:
        retrieval.provisional([secret, shared])
        retrieval.found([secret, shared])
    seen = engine.generate(f"{shared.text}\n\nB asks.", tenant="B").usage
    assert seen.document_ids == ()
    assert seen.retrieval_s == 0
    assert "merger" not in repr(seen)
    own = engine.generate(f"{secret.text}\n\n{shared.text}\n\nA's?", tenant="A").usage
    assert own.document_ids == (secret.id, "shared")
    assert own.speculation.timeline


def test_a_forgotten_document_is_not_warmed_by_its_id(engine_on):
    engine = engine_on(MemoryBackend())
    found = Document("old", "What is no longer true. " * 20)
    with engine.retrieval("Why?") as retrieval:
        retrieval.found([found])
    engine.forget(["old"])
    with pytest.raises(UnknownDocument, match="'old'"):
        engine.warm([["old"]], template="{context}\n\n{question}")
    assert engine.warm([["old"]], template="{context}\n\n{question}", corpus=[found]).sets == 1
