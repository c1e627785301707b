"""What the engine remembers of the last requests: their documents, and where each came from."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SpeculationOutcome
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.observing.request_log import (
    QUESTION_CHARACTERS,
    REMEMBERED,
    TTFT_BUCKETS_S,
    DocumentSource,
    RequestLog,
)
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.tiers.provenance import Reason
from ragcache_engine.values import CachedTokens, SamplingOptions, TokenizedPrompt, Usage

TIDES = Document("tides", "The moon pulls the oceans and the tides follow it " * 9 + "all day.")
SALT = Document("salt", "The rivers bring salt to the sea and there it stays " * 9 + "for long.")


def ask(engine: RAGCacheEngine, *documents: Document) -> tuple[DocumentSource, ...]:
    """Ask about these documents; return where they came from."""
    prompt = "\n\n".join([*(document.text for document in documents), "Why is it so?"])
    engine.generate(prompt, documents)
    return engine.recent_requests()[-1].documents


@pytest.mark.parametrize(
    "name", ["memory_engine", pytest.param("vllm_engine", marks=pytest.mark.vllm)]
)
def test_a_document_is_computed_once_and_then_comes_from_the_device(
    name: str, request: pytest.FixtureRequest
):
    engine: RAGCacheEngine = request.getfixturevalue(name)
    first, second = ask(engine, SALT), ask(engine, SALT)
    assert first[0].why == Reason.FIRST_TIME
    assert first[0].cached.total == 0
    assert first[0].computed_tokens == first[0].tokens
    assert second[0].cached.device > 0.7 * second[0].tokens
    assert second[0].why in ("", Reason.SHARED_BLOCK)


def test_behind_other_documents_it_is_computed_again_and_the_log_says_why(
    memory_engine: RAGCacheEngine,
):
    ask(memory_engine, TIDES)
    ask(memory_engine, SALT)
    tides, salt = ask(memory_engine, TIDES, SALT)
    assert tides.cached.device > 0
    assert (salt.cached.total, salt.why) == (0, Reason.OTHER_CONTEXT)


def test_what_was_evicted_is_said_to_be(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend(device_blocks=24))
    ask(engine, TIDES)
    for number in range(20):
        ask(engine, Document(f"other {number}", f"{number} and so forth " * 70))
    (again,) = ask(engine, TIDES)
    assert (again.cached.total, again.why) == (0, Reason.EVICTED)


def test_loaded_documents_name_the_tier_that_had_them(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(
        MemoryBackend(device_blocks=24, host_blocks=400, prefill_s=lambda cached, new: new * 1e-2)
    )
    for _ in range(2):
        ask(engine, TIDES)
    for number in range(20):
        ask(engine, Document(f"other {number}", f"{number} and so forth " * 70))
    (again,) = ask(engine, TIDES)
    assert again.cached.host > 0
    assert (again.cached.total, again.why) == (again.tokens, "")


def test_the_parts_of_documents_add_up_to_the_usage(memory_engine: RAGCacheEngine):
    for documents in ((TIDES,), (TIDES, SALT), (TIDES, SALT), (SALT,)):
        ask(memory_engine, *documents)
        request = memory_engine.recent_requests()[-1]
        parts = sum((one.cached for one in request.documents), CachedTokens())
        # The text before and behind the documents may be cached too.
        assert parts.total <= request.usage.cached.total
        assert [one.document_id for one in request.documents] == [one.id for one in documents]


def test_documents_that_borrowed_add_up_to_the_usage_also_when_the_question_comes_again():
    reefs = Document("reefs", "Corals build them, grain by grain and year by year " * 12)
    config = EngineConfig(
        backend="memory",
        reuse="anywhere",
        recompute_ratio=0.25,
        donors="alone",
        missing_donors="compute",
        recheck_share=0,
    )
    with RAGCacheEngine(config) as engine:
        first = ask(engine, TIDES, SALT)
        asked = ask(engine, reefs, SALT, TIDES), ask(engine, reefs, SALT, TIDES)
        requests = engine.recent_requests()[-2:]
    assert {one.why for one in first} == {Reason.FIRST_TIME}
    for documents, request in zip(asked, requests, strict=True):
        borrowed = sum((one.borrowed for one in documents), CachedTokens())
        assert borrowed == request.usage.borrowed
        assert sum(one.recomputed for one in documents) == request.usage.recomputed_tokens
        exact = sum((one.cached for one in documents), CachedTokens())
        assert exact.total <= request.usage.cached.total
        assert all(one.computed_tokens >= one.recomputed for one in documents)
    new, again = asked
    assert (new[0].cached.total, new[0].why) == (0, Reason.FIRST_TIME)
    assert again[0].cached.device > 0
    assert (new[2].borrowed.total, new[2].why) == (0, Reason.OTHER_CONTEXT)
    for document in (new[1], *again[1:]):
        joint = document.computed_tokens - document.recomputed
        assert document.borrowed.device > 0
        assert (joint, document.why) in ((0, ""), (1, Reason.JOINT))


def test_the_question_is_what_stands_behind_the_documents(memory_engine: RAGCacheEngine):
    ask(memory_engine, TIDES)
    assert memory_engine.recent_requests()[-1].question == "Why is it so?"
    memory_engine.generate("x" * 3 * QUESTION_CHARACTERS)
    assert len(memory_engine.recent_requests()[-1].question) == QUESTION_CHARACTERS


def test_only_the_last_requests_are_remembered_and_all_are_timed():
    log = RequestLog(now=lambda: 7.0)
    for number in range(REMEMBERED + 5):
        prompt = TokenizedPrompt("Why?", (1,), ((0, 4),))
        request = BackendRequest(f"r{number}", prompt, (), SamplingOptions())
        log.add(request, Usage(1, 1, CachedTokens(), ttft_s=0.2, total_s=1.0), None)
    assert [one.request_id for one in log.recent()][:2] == ["r5", "r6"]
    assert log.recent()[-1].ended_at == 7.0
    times = log.times_to_first_token()
    assert sum(times.counts) == REMEMBERED + 5
    assert times.sum_s == pytest.approx(0.2 * (REMEMBERED + 5))
    assert times.counts[TTFT_BUCKETS_S.index(0.25)] == REMEMBERED + 5


def test_an_adopted_speculation_is_traced_as_well(engine_on: Callable[..., RAGCacheEngine]):
    engine, question = engine_on(MemoryBackend(), speculation="on"), "Why is it so?"
    with engine.retrieval(question, template="{context}\n\n{question}") as search:
        search.provisional([TIDES])
        while not engine.stats().speculation.started:
            time.sleep(0.001)
        search.found([TIDES])
    engine.generate(f"{TIDES.text}\n\n{question}")
    (request,) = engine.recent_requests()
    assert request.usage.speculation.outcome is SpeculationOutcome.ADOPTED
    assert [one.why for one in request.documents] == [Reason.FIRST_TIME]
