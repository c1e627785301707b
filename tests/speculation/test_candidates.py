"""While something chooses from what a search found, the model computes what any choice will need."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, suppress
from typing import Any

import pytest
from waiting import eventually

from ragcache_engine import (
    Answer,
    Corpus,
    Document,
    EngineConfig,
    RAGCacheEngine,
    SamplingOptions,
    SpeculationStep,
    Template,
    sets_of_each,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.speculation.candidates import Pace
from ragcache_engine.speculation.prefill_load import ModelSpeed

TEMPLATE = Template("Use these passages.\n\n", "\n\n", "\n\nQuestion: {question}\nAnswer:")
FOUND = [
    Document(f"d{n}", f"Passage {n} tells what there is to say of subject {n}." + " So it is." * 20)
    for n in range(60)
]
ONE = SamplingOptions(max_tokens=1)
RERANKING_S = 0.3


class Listening(MemoryBackend):
    """Remembers what it was asked, and lets the time that others take pass on its own clock."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked: list[BackendRequest] = []
        self.ended: list[str] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.asked.append(request)
        try:
            async with aclosing(super().generate(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self.ended.append(request.request_id)

    @property
    def prepared(self) -> list[tuple[str, ...]]:
        return [tuple(one.document_ids) for one in self.asked if one.is_guess]


@pytest.fixture
def engine_of() -> Iterator[Callable[..., tuple[RAGCacheEngine, Listening]]]:
    with ExitStack() as opened:

        def make(**settings: Any) -> tuple[RAGCacheEngine, Listening]:
            settings = {"speculation": "auto", **settings}
            borrows = settings.get("reuse") == "anywhere"
            if borrows:
                settings = {
                    "recompute_ratio": 0.1,
                    "donors": "alone",
                    "recheck_share": 0,
                    **settings,
                }
            backend = Listening(recompute_ratio=0.1 if borrows else None, donors_later=borrows)
            config = EngineConfig(model="any", backend="memory", **settings)
            return opened.enter_context(RAGCacheEngine(config, backend=backend)), backend

        yield make


def settled(engine: RAGCacheEngine, backend: Listening) -> bool:
    """Wait until all that was told has been heard, and nothing more is prepared or answered."""

    def is_quiet() -> bool:
        heard = threading.Event()
        engine._runtime.call_soon(heard.set)
        is_preparing = engine._runtime.pipeline._preparation._task is not None
        return heard.wait(60) and not is_preparing and len(backend.ended) == len(backend.asked)

    return eventually(lambda: is_quiet() and is_quiet())


def ask(
    engine: RAGCacheEngine,
    backend: Listening,
    question: str,
    found: Sequence[Document],
    chosen: Sequence[Document],
    *,
    reranking_s: float = RERANKING_S,
    corpus: Corpus | None = None,
) -> Answer:
    """A search, a reranker that takes its time on a processor of its own, and the prompt."""
    with engine.retrieval(question, chain="chain", template=TEMPLATE) as retrieval:
        retrieval.candidates(found, corpus)
        assert settled(engine, backend)
        backend.advance(reranking_s)
        retrieval.found(chosen)
    return engine.generate(TEMPLATE(question, chosen), options=ONE)


def ask_thrice(engine: RAGCacheEngine, backend: Listening, **told: Any) -> None:
    """Show the chain's times and choices: the first two found, with others behind them."""
    for n in range(0, 30, 10):
        found = FOUND[n : n + 6]
        ask(engine, backend, f"Question {n}?", found, [*found[:2], found[4]], **told)
    backend.asked.clear()
    backend.ended.clear()


def test_with_exact_reuse_what_prompts_begin_with_is_prefilled(engine_of):
    engine, backend = engine_of()
    ask_thrice(engine, backend)
    found = FOUND[40:46]
    answer = ask(engine, backend, "Why?", found, [*found[:2], found[5]])
    assert backend.prepared[0] == ("d40", "d41"), "as much as all earlier prompts had in common"
    assert answer.usage.cached.total >= answer.usage.prompt_tokens / 2


def test_nothing_is_prefilled_if_rerankers_choose_another_first_document(engine_of):
    engine, backend = engine_of()
    for n in range(0, 40, 10):
        ask(engine, backend, f"Question {n}?", FOUND[n : n + 4], [FOUND[n + 2], FOUND[n]])
    assert not any(len(names) < 2 for names in backend.prepared)


def test_donors_of_all_candidates_are_computed_best_first(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later")
    ask_thrice(engine, backend)
    found = FOUND[40:48]
    answer = ask(engine, backend, "Why?", found, [found[6], found[1], found[3]])
    first, *_ = backend.prepared
    assert first == ("d40", "d41")
    assert {name for names in backend.prepared for name in names} >= {one.id for one in found}
    assert {one.document for one in answer.usage.reused if one.borrowed} == {"d41", "d43"}


def test_a_chain_is_watched_before_anything_is_prepared(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later")
    with engine.retrieval("Why?", chain="new", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[:8])
        assert settled(engine, backend)
        assert not backend.prepared


def test_nothing_is_prepared_where_the_prompt_comes_at_once(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later")
    ask_thrice(engine, backend, reranking_s=0.001)
    with engine.retrieval("Why?", chain="chain", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[40:48])
        assert settled(engine, backend)
        assert not backend.prepared


def slow(engine: RAGCacheEngine) -> None:
    """Let the engine have measured a model that takes a tenth of a second for each token."""
    engine._runtime.pipeline._load.speed = ModelSpeed(2.0, 20.0)


def test_nothing_is_computed_that_would_not_be_done_before_the_prompt(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="compute")
    ask_thrice(engine, backend)
    slow(engine)
    with engine.retrieval("Why?", chain="chain", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[40:48])
        assert settled(engine, backend)
        assert not backend.prepared


def test_what_a_tier_holds_is_loaded_however_slowly_the_model_computes(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="compute")
    engine.warm(sets_of_each(FOUND[40:44], borrows=True), template=TEMPLATE)
    ask_thrice(engine, backend)
    slow(engine)
    with engine.retrieval("Why?", chain="chain", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[40:48])
        assert settled(engine, backend)
    assert backend.prepared == [("d40", "d41")], (
        "and after one piece it knows that loading is quick"
    )


def test_what_is_loaded_at_once_is_left_to_the_prompt_but_tried_now_and_then(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="compute")
    engine.warm(sets_of_each(FOUND[:8], borrows=True), template=TEMPLATE)
    ask_thrice(engine, backend)
    prepared = []
    for n in range(20):
        backend.asked.clear()
        backend.ended.clear()
        ask(engine, backend, f"Why {n}?", FOUND[:8], FOUND[:2])
        prepared.append(len(backend.prepared))
    assert prepared.count(0) == 18
    assert prepared[0] > 0


def test_a_piece_that_was_cut_short_is_expected_to_take_twice_as_long():
    pace = Pace()
    pace.note_cut(100, 3.0)
    assert pace.token_s == 0.06
    pace.note_cut(100, 1.0)
    assert pace.token_s == 0.06
    pace.forget_some()
    assert pace.token_s < 0.06
    pace = Pace()
    pace.note_end(100, 2.0)
    pace.note_end(100, 6.0)
    assert pace.token_s == pytest.approx(0.03)


def test_documents_that_a_retriever_hands_on_are_candidates_too(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later")

    def ask_behind_postprocessor(n: int) -> Answer:
        found = FOUND[n : n + 8]
        with engine.retrieval(f"Question {n}?", chain="chain") as retrieval:
            retrieval.found(found)
        assert settled(engine, backend)
        backend.advance(RERANKING_S)
        chosen = [found[5], found[2]]
        return engine.generate(TEMPLATE(f"Question {n}?", chosen), options=ONE)

    for n in range(0, 40, 8):
        answer = ask_behind_postprocessor(n)
    assert {one.document for one in answer.usage.reused if one.borrowed} == {"d34"}


def test_a_neighbour_is_looked_up_by_the_engine_and_not_by_the_search(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later", donors="neighbours")
    threads = set()

    def find(asked: Sequence[Document]) -> list[Document | None]:
        threads.add(threading.current_thread().name)
        return [FOUND[59] for _ in asked]

    ask_thrice(engine, backend)
    ask(engine, backend, "Why?", FOUND[40:44], FOUND[40:42], corpus=Corpus(1, find))
    assert threads
    assert not any("Main" in name for name in threads)
    request = next(one for one in backend.asked if one.makes_donors)
    assert {context.document for context in request.contexts.values()} == {"d59"}


def test_a_prompt_ends_what_is_prepared(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later")
    ask_thrice(engine, backend)
    may_go_on = threading.Event()

    def hold(step: int) -> None:
        if not may_go_on.is_set():
            raise Stall

    backend._fault = hold
    with engine.retrieval("Why?", chain="chain", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[40:48])
        while not backend.prepared:
            time.sleep(0.001)
        other = engine.stream("Another prompt", options=ONE)
        while backend.aborted == 0:
            time.sleep(0.001)
        may_go_on.set()
        assert other.answer().text
        assert len(backend.prepared) == 1


def test_a_thousand_candidates_that_become_no_prompt_are_bounded(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later", speculation="on")
    many = [Document(f"m{n}", f"Text {n} is one of very many. " * 30) for n in range(1000)]
    with suppress(KeyError), engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.candidates(many)
        assert settled(engine, backend)
        raise KeyError("the reranker failed")
    computed = sum(one.expected_tokens for one in backend.asked)
    assert 0 < computed < engine.limits.device_tokens
    assert len({name for names in backend.prepared for name in names}) <= 64


def test_what_was_forgotten_is_not_prepared(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later", speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        engine.forget(["d1"])
        retrieval.candidates(FOUND[:3])
        assert settled(engine, backend)
        assert all("d1" in one.withdrawn for one in backend.asked if "d1" in one.document_ids)


def test_no_candidates_are_prepared_without_speculation(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="compute", speculation="off")
    ask_thrice(engine, backend)
    ask(engine, backend, "Why?", FOUND[40:46], FOUND[40:42])
    assert not backend.prepared


def test_several_searches_take_turns(engine_of):
    engine, backend = engine_of(reuse="anywhere", missing_donors="later", speculation="on")
    with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
        retrieval.candidates(FOUND[:3])
        retrieval.candidates([FOUND[1], *FOUND[10:13]])
        assert settled(engine, backend)
        retrieval.found([FOUND[0], FOUND[10]])
    usage = engine.generate(TEMPLATE("Why?", [FOUND[0], FOUND[10]]), options=ONE).usage
    seen = [
        one.detail for one in usage.speculation.timeline if one.step is SpeculationStep.CANDIDATES
    ]
    assert seen[:2] == ["3 documents", "4 documents"]
    assert {name for names in backend.prepared for name in names} >= {
        "d0",
        "d1",
        "d2",
        "d10",
        "d12",
    }


def test_bad_candidates_fail_no_search(engine_of, caplog: pytest.LogCaptureFixture):
    engine, _ = engine_of()
    with engine.retrieval("Why?") as retrieval:
        retrieval.candidates(["no document"])  # type: ignore[list-item]
        retrieval.found(FOUND[:1])
    assert "candidates were ignored" in caplog.text
