"""The async face: the loop stays free, and nothing is left running."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import faiss
import numpy as np
import pytest
from waiting import eventually

from ragcache_engine.search import astages, stages
from ragcache_engine.search.ivf import PartialIVFSearch

PARAMS = faiss.SearchParametersIVF(nprobe=40)


def searching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ragcache-search"]


def ended() -> bool:
    """Whether the search threads end; waits for them."""
    for thread in searching():
        thread.join(timeout=30)
    return not searching()


async def drawn(index: Any, query: Any, k: int = 5, **options: Any) -> list[Any]:
    return [stage async for stage in astages(index, query, k, **options)]


@pytest.mark.parametrize("factory", ["IVF48,Flat", "Flat", "HNSW16,Flat", "LSH"])
def test_the_stages_are_those_of_the_plain_iterator(built, questions, factory):
    index = built(factory)
    params = PARAMS if factory.startswith("IVF") else None
    for query in (questions[0], questions[:6]):
        plain = list(stages(index, query, 5, params=params))
        found = asyncio.run(drawn(index, query, params=params))
        assert len(found) == len(plain)
        for one, other in zip(found, plain, strict=True):
            assert one.ids.tolist() == other.ids.tolist()
            assert one.distances.tolist() == other.distances.tolist()
            assert (one.fraction_done, one.final) == (other.fraction_done, other.final)
    assert ended()


def test_faiss_uses_as_many_threads_as_the_caller_has_set(built, questions, monkeypatch):
    seen = []
    real = PartialIVFSearch.scan

    def scan(self: PartialIVFSearch, start: int, end: int) -> Any:
        seen.append(faiss.omp_get_max_threads())
        return real(self, start, end)

    monkeypatch.setattr(PartialIVFSearch, "scan", scan)
    for number in (1, 2):
        faiss.omp_set_num_threads(number)
        seen.clear()
        asyncio.run(drawn(built("IVF48,Flat"), questions[0], params=PARAMS))
        assert set(seen) == {number}
    faiss.omp_set_num_threads(1)


class Held:
    """Let one part of a search run, then hold every further part until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.holding = threading.Event()
        self.scans = 0
        real = PartialIVFSearch.scan

        def scan(search: PartialIVFSearch, start: int, end: int) -> Any:
            self.scans += 1
            if self.scans > 1:
                self.holding.set()
                assert self.go.wait(timeout=30)
            return real(search, start, end)

        monkeypatch.setattr(PartialIVFSearch, "scan", scan)


def test_the_loop_runs_on_while_faiss_searches(built, questions, monkeypatch):
    held = Held(monkeypatch)

    async def ask() -> list[Any]:
        search = astages(built("IVF48,Flat"), questions[0], 5, params=PARAMS)
        first = await anext(search)
        # Only the loop can let the search go on, so it must be free while the search waits.
        asyncio.get_running_loop().call_later(0.01, held.go.set)
        return [first, *[stage async for stage in search]]

    assert len(asyncio.run(ask())) == 8
    assert ended()


@pytest.mark.parametrize("way", ["close", "cancel", "break"])
def test_leaving_early_ends_the_search_with_the_running_part(built, questions, monkeypatch, way):
    held = Held(monkeypatch)

    async def ask() -> None:
        search = astages(built("IVF48,Flat"), questions[0], 5, params=PARAMS)
        await anext(search)
        assert await asyncio.to_thread(held.holding.wait, 30)
        if way == "close":
            await search.aclose()
        elif way == "cancel":

            async def read() -> None:
                await anext(search)

            reading = asyncio.create_task(read())
            await asyncio.sleep(0.01)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(ask())
    held.go.set()
    assert ended()
    assert held.scans == 2


def test_a_loop_that_closes_under_the_search_ends_it(built, questions, monkeypatch):
    held = Held(monkeypatch)
    loop = asyncio.new_event_loop()
    search = astages(built("IVF48,Flat"), questions[0], 5, params=PARAMS)
    loop.run_until_complete(anext(search))
    assert held.holding.wait(30)
    loop.close()
    held.go.set()
    assert ended()
    assert held.scans == 2
    with pytest.raises(RuntimeError, match="closed"):
        loop.run_until_complete(search.aclose())


def test_a_search_nobody_draws_from_is_never_started(built, questions, monkeypatch):
    held = Held(monkeypatch)

    async def ask() -> None:
        astages(built("IVF48,Flat"), questions[0], 5, params=PARAMS)
        await asyncio.sleep(0)

    asyncio.run(ask())
    assert held.scans == 0


def test_the_search_does_not_wait_for_its_reader(built, questions):
    async def ask() -> int:
        search = astages(built("IVF48,Flat"), questions[0], 5, params=PARAMS)
        await anext(search)
        # The loop is blocked on purpose: the search must come to its end all the same.
        assert eventually(lambda: not searching())
        return 1 + len([stage async for stage in search])

    assert asyncio.run(ask()) == 8


def test_an_error_of_faiss_reaches_the_reader(built, questions):
    with pytest.raises(RuntimeError, match="incorrect type"):
        asyncio.run(drawn(built("IVF48,Flat"), questions[0], params=faiss.SearchParametersHNSW()))
    assert ended()


def test_many_searches_at_once_keep_their_settings(built, questions):
    index = built("IVF48,SQ8")

    async def ask(at: int) -> bool:
        params = faiss.SearchParametersIVF(nprobe=1 + at)
        *_, last = await drawn(index, questions[at], params=params)
        distances, ids = index.search(questions[at : at + 1], 5, params=params)
        return bool(
            np.array_equal(last.ids, ids[0]) and last.distances.tobytes() == distances.tobytes()
        )

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(ask(at) for at in range(40)))

    assert all(asyncio.run(all_of_them()))
    assert ended()
