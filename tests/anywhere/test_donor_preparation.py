"""With missing_donors="later", new documents are answered exactly, and prepared in idle time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from ragcache_engine import (
    Answer,
    Corpus,
    Document,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.anywhere.donor_preparation import (
    AGAIN_S,
    MOST_WAITING,
    PreparingBackend,
)
from ragcache_engine.errors import EngineDied
from ragcache_engine.prompt import Span, token_segments
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.tiers.borrowing.plan import WhyExact

SEA = [Document(f"d{n}", f"What is known about the sea, page {n}. " * 20) for n in range(8)]
LATER = WhyExact.NOT_PREPARED.value
ONE = SamplingOptions(max_tokens=1)


@pytest.fixture(autouse=True)
def _idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = PreparingBackend.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "idle_s", 0.0)


@pytest.fixture
def engine_of() -> Iterator[Callable[..., RAGCacheEngine]]:
    engines: list[RAGCacheEngine] = []

    def make(**changes: Any) -> RAGCacheEngine:
        settings = {"backend": "memory", "reuse": "anywhere", "recompute_ratio": 0.1}
        settings |= {"donors": "alone", "missing_donors": "later", **changes}
        engines.append(RAGCacheEngine(EngineConfig.model_validate(settings)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def ask(engine: RAGCacheEngine, *pages: int, **how: Any) -> Answer:
    found = [SEA[page] for page in pages]
    texts = "\n\n".join(document.text for document in found)
    return engine.generate(f"You know the sea.\n\n{texts}\n\nWhy?", found, ONE, **how)


def prepared(engine: RAGCacheEngine) -> bool:
    deadline = time.monotonic() + 30
    while engine.stats().unprepared and time.monotonic() < deadline:
        time.sleep(0.01)
    return not engine.stats().unprepared


def test_new_documents_are_answered_exactly_and_borrowed_the_next_time(engine_of):
    engine = engine_of()
    first = ask(engine, 0, 1, 2).usage
    assert (first.is_exact, first.why_exact) == (True, LATER)
    assert prepared(engine)
    second = ask(engine, 0, 2, 1).usage
    assert not second.is_exact
    assert second.borrowed.device > second.prompt_tokens // 2


def test_new_documents_among_known_ones_are_computed_in_their_place_and_prepared_afterwards(
    engine_of,
):
    engine = engine_of(donors="neighbours")
    near = {one.id: Document(f"near {one.id}", f"Near {one.text}") for one in SEA}
    corpus = Corpus(1, lambda asked: [near.get(one.id) for one in asked])
    with engine.retrieval("Why?") as retrieval:
        retrieval.look_up_neighbours(SEA[:3], corpus)
        retrieval.found(SEA[:3])
    ask(engine, 0, 1, 2)
    assert prepared(engine)
    with engine.retrieval("When?") as retrieval:
        retrieval.look_up_neighbours(SEA[:6], corpus)
        retrieval.found(SEA[:6])
    usage = ask(engine, 0, 3, 1, 4, 2, 5).usage
    assert [one.document for one in usage.reused if one.borrowed] == ["d1", "d2"]
    assert [one.tier for one in usage.reused] == ["device", None, "device", None, "device", None]
    assert prepared(engine)
    usage = ask(engine, 0, 5, 4, 3).usage
    assert [one.document for one in usage.reused if one.borrowed] == ["d5", "d4", "d3"]


def near(count: int) -> Corpus:
    """Return a corpus in which the pages are near the `count` next ones."""

    def find(asked: Sequence[Document]) -> list[list[Document]]:
        numbers = (int(one.id[1:]) for one in asked)
        return [[SEA[(at + step + 1) % 8] for step in range(count)] for at in numbers]

    return Corpus(1, find)


def search(engine: RAGCacheEngine, corpus: Corpus, *pages: int) -> None:
    with engine.retrieval("Why?") as retrieval:
        retrieval.look_up_neighbours([SEA[page] for page in pages], corpus)
        retrieval.found([SEA[page] for page in pages])


def found_prepared(engine: RAGCacheEngine) -> bool:
    deadline = time.monotonic() + 30
    while engine.stats().found_unprepared and time.monotonic() < deadline:
        time.sleep(0.01)
    return prepared(engine) and not engine.stats().found_unprepared


def borrowed_by(answer: Answer) -> list[str]:
    return [one.document for one in answer.usage.reused if one.borrowed]


def test_what_a_search_found_and_a_prompt_left_out_is_prepared_before_anybody_asks(engine_of):
    engine = engine_of(donors="neighbours")
    search(engine, near(1), 0, 1, 3, 5)
    ask(engine, 0, 1)
    assert found_prepared(engine)
    assert borrowed_by(ask(engine, 0, 5, 3)) == ["d5", "d3"]


def test_so_is_what_is_near_the_documents_found_but_not_what_is_near_that(engine_of):
    engine = engine_of(donors="neighbours")
    looked_up: list[str] = []

    def find(asked: Sequence[Document]) -> Sequence[Sequence[Document]]:
        looked_up.extend(one.id for one in asked)
        return near(3).look_up(asked)

    search(engine, Corpus(1, find), 0)
    ask(engine, 0)
    assert found_prepared(engine)
    assert sorted(looked_up) == ["d0", "d1", "d2", "d3"]
    search(engine, Corpus(1, find), 0, 3, 2)
    assert borrowed_by(ask(engine, 0, 3, 2)) == ["d3", "d2"]


def test_a_document_that_stood_in_a_prompt_waits_no_more(engine_of, monkeypatch):
    defaults = PreparingBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "idle_s", 3600.0)
    engine = engine_of(donors="neighbours")
    search(engine, near(1), 0, 1, 3)
    assert engine.stats().found_unprepared == 5
    ask(engine, 0, 5)
    ask(engine, 0, 1)
    assert engine.stats().found_unprepared == 3
    engine.forget(["d3"])
    assert engine.stats().found_unprepared == 2
    engine.clear_cache()
    assert engine.stats().found_unprepared == 0


def test_no_prompt_begins_with_a_forgotten_document(engine_of):
    engine = engine_of(donors="neighbours")
    ask(engine, 0, 1)
    assert found_prepared(engine)
    engine.forget(["d0"])
    search(engine, near(1), 3)
    time.sleep(0.1)
    assert engine.stats().found_unprepared == 2, "nothing tells how prompts begin now"
    ask(engine, 5, 6)
    assert found_prepared(engine)


def test_what_was_found_without_a_tenant_is_prepared_for_whoever_asks(engine_of):
    engine = engine_of(donors="neighbours")
    search(engine, near(1), 3)
    ask(engine, 5, 6, tenant="ada")
    assert found_prepared(engine)
    ask(engine, 3, tenant="ada")
    search(engine, near(1), 3)
    assert found_prepared(engine)


def test_what_was_found_for_a_tenant_is_prepared_for_that_tenant(engine_of):
    engine = engine_of(donors="neighbours")
    with engine.retrieval("Why?", tenant="ada") as retrieval:
        retrieval.look_up_neighbours(SEA[:4], near(1))
        retrieval.found(SEA[:4])
    ask(engine, 0, 1)
    time.sleep(0.1)
    assert engine.stats().found_unprepared == 5, "no prompt of hers tells how prompts begin"
    ask(engine, 0, 1, tenant="ada")
    assert found_prepared(engine)
    assert borrowed_by(ask(engine, 0, 3, 2, tenant="ada")) == ["d3", "d2"]
    assert ask(engine, 1, 3, 2).usage.is_exact


def test_no_prompt_computes_more_than_its_exact_answer(engine_of):
    engine, exact = engine_of(), engine_of()
    for pages in ([0, 1, 2], [3, 1, 2], [4, 5, 1], [6, 5, 7]):
        mine, theirs = ask(engine, *pages).usage, ask(exact, *pages, exact=True).usage
        assert mine.computed_tokens <= theirs.computed_tokens
        assert prepared(engine)


def test_preparing_is_no_request_in_the_statistics_and_no_use_of_documents(engine_of):
    engine = engine_of()
    ask(engine, 0, 1)
    assert prepared(engine)
    stats = engine.stats()
    assert (stats.finished, stats.running, stats.approximate) == (1, 0, 0)


def test_a_prompt_asked_twice_is_prepared_once(engine_of):
    engine = engine_of()
    for _ in range(2):
        ask(engine, 0, 1, 2)
    assert prepared(engine)
    before = engine.stats().tiers
    assert before.donor_tokens > 0
    assert ask(engine, 0, 1, 2).usage.why_exact == WhyExact.CACHED
    assert engine.stats().unprepared == 0
    assert engine.stats().tiers.donor_tokens == before.donor_tokens, "nothing is prepared again"


def test_warming_prepares_at_once(engine_of):
    engine = engine_of()
    engine.warm([SEA[:3], SEA[2::-1]], template="You know the sea.\n\n{context}\n\n{question}")
    assert engine.stats().unprepared == 0
    assert not ask(engine, 1, 2, 0).usage.is_exact


def test_a_neighbour_is_prepared_with_its_document(engine_of):
    engine = engine_of(donors="neighbours")
    corpus = Corpus(1, lambda asked: [SEA[7] for _ in asked])
    with engine.retrieval("Why?") as retrieval:
        retrieval.look_up_neighbours(SEA[:3], corpus)
        retrieval.found(SEA[:3])
    assert ask(engine, 0, 1, 2).usage.why_exact == LATER
    assert prepared(engine)
    assert not ask(engine, 0, 2, 1).usage.is_exact


class Held(MemoryBackend):
    """Borrows, prepares later, and ends no answer that somebody asked for before `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(recompute_ratio=0.1, donors_later=True)
        self.has_begun, self.go_on = threading.Event(), threading.Event()

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                if delta.finish_reason and not request.makes_donors:
                    self.has_begun.set()
                    await asyncio.to_thread(self.go_on.wait, 30)
                yield delta


@pytest.mark.slow
def test_what_is_forgotten_while_it_is_asked_is_not_prepared():
    backend = Held()
    config = EngineConfig(
        model="any",
        reuse="anywhere",
        recompute_ratio=0.1,
        donors="alone",
        missing_donors="later",
        recheck_share=0,
    )
    with RAGCacheEngine(config, backend=backend) as engine, ThreadPoolExecutor(1) as beside:
        asked = beside.submit(ask, engine, 0, 1)
        assert backend.has_begun.wait(30)
        engine.forget(["d1"])
        backend.go_on.set()
        assert asked.result().usage.why_exact == LATER
        time.sleep(0.1)
        assert engine.stats().unprepared == 0
        assert engine.stats().tiers.donor_tokens == 0
        ask(engine, 2, 3)
        assert prepared(engine)
        assert engine.stats().tiers.donor_tokens > 0, "what comes afterwards is prepared"


def test_nothing_is_prepared_that_nobody_will_borrow():
    inner = MemoryBackend(recompute_ratio=0.1, donors_later=True)
    backend = PreparingBackend(inner, is_wanted=lambda: False)
    config = EngineConfig(
        model="any",
        reuse="anywhere",
        recompute_ratio=0.1,
        donors="alone",
        missing_donors="compute",  # the engine prepares nothing, this backend would
        recheck_share=0,
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        ask(engine, 0, 1)
        time.sleep(0.1)
        assert backend.report()["unprepared"] == 1
        assert engine.stats().tiers.donor_tokens == 0


def test_what_is_forgotten_is_not_prepared(engine_of, monkeypatch: pytest.MonkeyPatch):
    defaults = PreparingBackend.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "idle_s", 3600.0)
    engine = engine_of()
    ask(engine, 0, 1)
    ask(engine, 2, 3)
    assert engine.stats().unprepared == 2
    engine.forget(["d1"])
    assert engine.stats().unprepared == 1
    engine.clear_cache()
    assert engine.stats().unprepared == 0


def test_only_the_latest_prompts_wait(engine_of, monkeypatch: pytest.MonkeyPatch):
    defaults = PreparingBackend.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "idle_s", 3600.0)
    engine = engine_of()
    for number in range(MOST_WAITING + 3):
        found = [Document(f"{number} {part}", f"page {number} {part} " * 30) for part in range(2)]
        engine.generate("\n\n".join([*(one.text for one in found), "Why?"]), found, ONE)
    assert engine.stats().unprepared == MOST_WAITING


def test_a_request_ends_the_preparing_which_goes_on_later():
    class Slow(MemoryBackend):
        """Holds what only prepares, as long as `is_held`."""

        is_held = True
        begun = 0

        async def generate(self, request: Any) -> Any:
            if request.makes_donors:
                self.begun += 1
                while self.is_held:
                    await asyncio.sleep(0.01)
            async for delta in super().generate(request):
                yield delta

    backend = Slow(recompute_ratio=0.1, donors_later=True)
    config = EngineConfig(
        model="any", reuse="anywhere", recompute_ratio=0.1, donors="alone", missing_donors="later"
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        ask(engine, 0, 1, 2)
        deadline = time.monotonic() + 30
        while not backend.begun and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask(engine, 3, 4).usage.is_exact
        assert engine.stats().unprepared == 2
        backend.is_held = False
        assert prepared(engine)
        assert backend.begun >= 3
        assert not ask(engine, 2, 1, 0).usage.is_exact


def test_what_waits_when_the_model_dies_in_idle_time_is_prepared_after_the_next_request():
    class Mortal(MemoryBackend):
        """Dies of whatever is only prepared, as long as `is_dying`."""

        is_dying = True
        deaths = 0

        async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
            if request.makes_donors and self.is_dying:
                self.deaths += 1
                raise EngineDied("the model died")
            async for delta in super().generate(request):
                yield delta

    backend = Mortal(recompute_ratio=0.1, donors_later=True)
    config = EngineConfig(
        model="any", reuse="anywhere", recompute_ratio=0.1, missing_donors="later"
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        ask(engine, 0, 1, 2)
        deadline = time.monotonic() + 30
        while not backend.deaths and time.monotonic() < deadline:
            time.sleep(0.01)
        search(engine, near(1), 0, 1, 6)
        ask(engine, 3, 4)
        while backend.deaths < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        stats = engine.stats()
        assert (backend.deaths, stats.unprepared, stats.found_unprepared) == (2, 2, 2)
        backend.is_dying = False
        ask(engine, 3, 4)
        assert found_prepared(engine)
        assert borrowed_by(ask(engine, 3, 6, 2)) == ["d6", "d2"]


@pytest.mark.parametrize(
    "settings",
    [
        {"missing_donors": "compute"},
        {"missing_donors": "compute", "reuse": "anywhere", "donors": "any"},
    ],
)
def test_it_is_refused_where_nothing_is_ever_prepared(settings: dict[str, Any]):
    with pytest.raises(ValueError, match="missing_donors"):
        EngineConfig.model_validate({"backend": "memory", **settings})


def request_of(
    backend: MemoryBackend, *pages: int, tenant: str | None = None, text: str = "You know the sea."
) -> BackendRequest:
    """A prompt as it is told of that reaches the model another way. text: its beginning."""
    spans = []
    for page in pages:
        start = len(text) + 2
        text += f"\n\n{SEA[page].text}"
        spans.append(Span(start, len(text), SEA[page].id))
    tokens = backend.tokenize(text, True)
    return BackendRequest("elsewhere", tokens, token_segments(tokens, spans), ONE, tenant)


async def test_prompts_that_reach_the_model_another_way_are_prepared_once_in_a_while():
    inner = MemoryBackend(recompute_ratio=0.1, donors_later=True)
    now_s = 0.0
    backend = PreparingBackend(inner, clock=lambda: now_s)
    await backend.start()

    async def prepare(*pages: int, **how: Any) -> int:
        """Tell of a prompt, wait, and return how many were prepared for it."""
        before = backend.report()["prepared"]
        with backend.idle.request():  # as the server's doors do
            backend.note_elsewhere(request_of(inner, *pages, **how))
        for _ in range(200):
            await asyncio.sleep(0.005)
            if not backend.report()["unprepared"]:
                break
        return int(backend.report()["prepared"] - before)

    assert await prepare(0, 1) == 1
    assert await prepare(0, 1) == 0, "not at once again"
    assert await prepare(1, 0) == 0, "nor in another order"
    assert await prepare(0, 2) == 1, "a document of it is new"
    assert await prepare(0, 1, tenant="shop") == 1, "tenants share nothing"
    assert await prepare(0, 1, text="You know the moon.") == 1, "nor do other beginnings"
    assert await prepare(1) == 0, "a prompt of one document borrows nothing"
    now_s += AGAIN_S
    assert await prepare(0, 1) == 1, "what was evicted comes back"
    await backend.forget(["d1"])
    assert await prepare(0, 1) == 1, "what was forgotten is new"
    await backend.close()
