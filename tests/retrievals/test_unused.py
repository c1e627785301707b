"""An engine that is told of searches and gets no prompt from them says so, once."""

from __future__ import annotations

import logging

import pytest

from ragcache_engine import Document, MemoryBackend, RAGCacheEngine
from ragcache_engine.retrievals.unused import PATIENCE_S, SEARCHES, UnusedRetrievals

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)


@pytest.fixture
def warnings(caplog):
    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]

    return warnings


def search(engine: RAGCacheEngine, times: int = 1) -> None:
    for _ in range(times):
        with engine.retrieval("Why are there tides?") as retrieval:
            retrieval.found([TIDES])


def wait_a_minute(engine: RAGCacheEngine) -> None:
    engine.generate("Say something, so that the virtual clock moves.")


@pytest.fixture
def slow_engine(engine_on):
    return engine_on(MemoryBackend(decode_s=PATIENCE_S))


def test_a_retriever_whose_llm_has_another_engine_is_told(slow_engine, engine_on, warnings):
    other = engine_on(MemoryBackend())
    search(slow_engine, SEARCHES)
    other.generate(f"{TIDES.text}\n\nWhy?")
    assert warnings() == []
    wait_a_minute(slow_engine)
    search(slow_engine)
    (said,) = warnings()
    assert "the same engine as the retriever" in said
    wait_a_minute(slow_engine)
    search(slow_engine, SEARCHES)
    assert len(warnings()) == 1


def test_a_chain_on_one_engine_hears_nothing(slow_engine, warnings):
    search(slow_engine)
    slow_engine.generate(f"{TIDES.text}\n\nWhy?")
    search(slow_engine, 2 * SEARCHES)
    wait_a_minute(slow_engine)
    search(slow_engine)
    assert warnings() == []


def test_a_long_batch_that_searches_before_its_first_prompt_hears_nothing(warnings):
    unused = UnusedRetrievals()
    for number in range(10 * SEARCHES):
        unused.note_search(number * 0.01)
    assert warnings() == []
    unused.note_use()
    unused.note_search(10 * PATIENCE_S)
    assert warnings() == []


def test_a_few_searches_alone_hear_nothing(warnings):
    unused = UnusedRetrievals()
    for number in range(SEARCHES - 1):
        unused.note_search(number * PATIENCE_S)
    assert warnings() == []
