"""Requests end when nobody reads them any more, and every one of them is counted."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest

from ragcache_engine import MemoryBackend, RAGCacheEngine, SamplingOptions
from ragcache_engine.protocols import BackendRequest, Delta

PROMPT = "Why is the sky blue, and the sea as well? " * 16
TWELVE = SamplingOptions(max_tokens=12)
ENDLESS = SamplingOptions(max_tokens=None, ignore_eos=True)
FOR_EVER = "Count for ever: one two three " * 60


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_leaving_a_stream_early_cancels_its_request(engine: RAGCacheEngine, leave: str):
    before = engine.stats().cancelled
    stream = engine.stream(FOR_EVER, options=ENDLESS)
    if leave == "close":
        stream.close()
        assert list(stream) == []
    elif leave == "with":
        with stream:
            pass
    del stream
    gc.collect()
    assert eventually(lambda: engine.stats().cancelled == before + 1)
    assert eventually(lambda: engine.stats().running == 0)


def test_leaving_an_async_stream_early_cancels_its_request(engine: RAGCacheEngine):
    before = engine.stats().cancelled

    async def read_nothing_more_than_one() -> None:
        stream = engine.astream(FOR_EVER, options=ENDLESS)
        await anext(stream)
        await stream.aclose()

    asyncio.run(read_nothing_more_than_one())
    assert eventually(lambda: engine.stats().cancelled == before + 1)


def test_cancelling_the_task_of_an_async_caller_cancels_its_request(engine: RAGCacheEngine):
    before = engine.stats()

    async def cancelled() -> None:
        asking = asyncio.create_task(engine.agenerate(FOR_EVER, options=ENDLESS))
        while engine.stats().running == before.running:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert eventually(lambda: engine.stats().running == 0)
    assert engine.stats().cancelled == before.cancelled + 1


def test_the_counters_add_up(engine: RAGCacheEngine):
    before = engine.stats()
    usages = [engine.generate(PROMPT, options=TWELVE).usage for _ in range(2)]
    after = engine.stats()
    assert after.finished - before.finished == 2
    assert after.prompt_tokens - before.prompt_tokens == sum(u.prompt_tokens for u in usages)
    assert after.cached.total - before.cached.total == sum(u.cached.total for u in usages)
    assert after.running == 0
    assert 0 < after.hit_ratio() <= 1


def test_who_has_the_whole_answer_finds_it_counted(engine_on: Callable[..., RAGCacheEngine]):
    class Lingering(MemoryBackend):
        async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
            async with aclosing(super().generate(request)) as deltas:
                try:
                    async for delta in deltas:
                        yield delta
                finally:
                    await asyncio.sleep(0.2)

    engine = engine_on(Lingering())
    for piece in engine.stream("Why?", options=TWELVE):
        if piece.usage:
            assert (engine.stats().finished, engine.stats().running) == (1, 0)
    assert engine.stats().finished == 1
