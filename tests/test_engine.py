"""What every engine promises, held against the fake and against real vLLM."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import FrozenInstanceError, asdict

import pytest
from slices import SLICES, TWELVE, WITH, prompt_of
from waiting import eventually

from ragcache_engine import (
    EngineConfig,
    EngineError,
    EngineNeeded,
    EngineStartFailed,
    FinishReason,
    MemoryBackend,
    ModelLimits,
    RAGCacheEngine,
    SamplingOptions,
    TierCounters,
)

ENDLESS = SamplingOptions(max_tokens=None, ignore_eos=True)
FOR_EVER = "Count for ever: one two three " * 60


def test_an_answer_is_what_its_stream_says_piece_by_piece(engine: RAGCacheEngine):
    prompt = prompt_of(SLICES)
    answer = engine.generate(prompt, options=TWELVE)
    pieces = list(engine.stream(prompt, options=TWELVE))
    assert "".join(piece.text for piece in pieces) == answer.text
    assert sum((piece.token_ids for piece in pieces), ()) == answer.token_ids
    assert [bool(piece.usage) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_the_four_faces_give_one_answer(engine: RAGCacheEngine):
    prompt = prompt_of(WITH)

    async def asked() -> tuple[str, str]:
        whole = await engine.agenerate(prompt, options=TWELVE)
        pieces = [piece async for piece in engine.astream(prompt, options=TWELVE)]
        return whole.text, "".join(piece.text for piece in pieces)

    expected = engine.generate(prompt, options=TWELVE).text
    assert asyncio.run(asked()) == (expected, expected)


def test_a_document_seen_before_is_not_prefilled_again(engine: RAGCacheEngine):
    engine.clear_cache()
    first = engine.generate(prompt_of(SLICES, WITH, question="What is with?"), options=TWELVE)
    second = engine.generate(prompt_of(SLICES, WITH, question="And a slice?"), options=TWELVE)
    block = engine.limits.block_tokens
    assert first.usage.cached.total == 0
    assert second.usage.cached.device >= 128 - block
    assert second.usage.cached.device % block == 0
    assert second.usage.computed_tokens + second.usage.cached.total == second.usage.prompt_tokens


def test_a_cleared_cache_is_cold(engine: RAGCacheEngine):
    prompt = prompt_of(SLICES, WITH)
    engine.generate(prompt, options=TWELVE)
    engine.clear_cache()
    assert engine.generate(prompt, options=TWELVE).usage.cached.total == 0


def test_the_cache_is_not_cleared_under_a_running_request(engine: RAGCacheEngine):
    with engine.stream(FOR_EVER, options=ENDLESS) as stream:
        next(stream)
        with pytest.raises(EngineError, match="wait"):
            engine.clear_cache()


def test_max_tokens_ends_an_answer_for_its_length(engine: RAGCacheEngine):
    answer = engine.generate(prompt_of(SLICES), options=SamplingOptions(max_tokens=3))
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.token_ids) == answer.usage.output_tokens == 3


def test_a_stop_string_ends_an_answer_and_is_not_part_of_it(engine: RAGCacheEngine):
    whole = engine.generate(prompt_of(SLICES), options=TWELVE).text
    stop = whole.split()[2]
    cut = engine.generate(prompt_of(SLICES), options=SamplingOptions(max_tokens=12, stop=(stop,)))
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == whole[: whole.index(stop)]


def test_many_threads_and_tasks_get_the_answers_they_would_get_alone(engine: RAGCacheEngine):
    prompts = [prompt_of(SLICES, question=f"What is item {n}?") for n in range(6)]
    alone = [engine.generate(prompt, options=TWELVE).text for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        threads = list(pool.map(lambda p: engine.generate(p, options=TWELVE).text, prompts))

    async def together() -> list[str]:
        answers = await asyncio.gather(*(engine.agenerate(p, options=TWELVE) for p in prompts))
        return [answer.text for answer in answers]

    assert threads == alone
    assert asyncio.run(together()) == alone


@pytest.mark.slow
def test_an_engine_dropped_while_its_stream_is_read_goes_on():
    stream = RAGCacheEngine(EngineConfig(model="any", backend="memory")).stream("Still there?")
    gc.collect()
    assert "".join(piece.text for piece in stream) == "You asked: Still there?"


def test_an_asynchronous_with_block_closes_the_engine():
    async def ask() -> tuple[str, RAGCacheEngine]:
        async with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            answer = await engine.agenerate("Why?")
        return answer.text, engine

    text, engine = asyncio.run(ask())
    assert (text, engine.closed) == ("You asked: Why?", True)


def test_the_asynchronous_doors_do_what_the_others_do(engine: RAGCacheEngine):
    prompt = prompt_of(SLICES, WITH)

    async def cached_after(act: Callable[[], Awaitable[None]]) -> int:
        await engine.agenerate(prompt, [SLICES, WITH], TWELVE)
        await act()
        return (await engine.agenerate(prompt, [SLICES, WITH], TWELVE)).usage.cached.total

    async def forget_both() -> None:
        await engine.aforget(["slices", "with"])

    async def leave_it() -> None:
        pass

    assert asyncio.run(cached_after(leave_it)) > 0
    assert asyncio.run(cached_after(forget_both)) == 0
    assert asyncio.run(cached_after(engine.aclear_cache)) == 0


def test_an_asynchronous_clearing_is_refused_under_a_running_request(engine: RAGCacheEngine):
    async def clear() -> None:
        async with aclosing(engine.astream(FOR_EVER, options=ENDLESS)) as stream:
            await anext(stream)
            with pytest.raises(EngineError, match="wait"):
                await engine.aclear_cache()

    asyncio.run(clear())


def test_forgetting_takes_ids_and_not_one_text(memory_engine: RAGCacheEngine):
    with pytest.raises(TypeError, match=r"forget\(\['slices'\]\)"):
        memory_engine.forget("slices")
    with pytest.raises(TypeError, match=r"forget\(\['slices'\]\)"):
        asyncio.run(memory_engine.aforget("slices"))


class Slow(MemoryBackend):
    """Starts and closes when it is let, holding up the engine's loop as vLLM's start does."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start, self.may_close = threading.Event(), threading.Event()
        self.is_starting, self.is_closed = threading.Event(), threading.Event()

    async def start(self) -> ModelLimits:
        self.is_starting.set()
        assert self.may_start.wait(20)
        return await super().start()

    async def close(self) -> None:
        assert self.may_close.wait(20)
        await super().close()
        self.is_closed.set()


def test_an_engine_starts_and_closes_without_blocking_the_callers_loop():
    backend = Slow()

    async def live() -> str:
        creating = asyncio.create_task(
            RAGCacheEngine.acreate(EngineConfig(backend="memory"), backend=backend)
        )
        await until(backend.is_starting)
        backend.may_start.set()  # by the loop, which is free while the engine starts
        engine = await creating
        text = (await engine.agenerate("Why?")).text
        closing = asyncio.create_task(engine.aclose())
        while not engine.closed:
            await asyncio.sleep(0.001)
        backend.may_close.set()
        await closing
        return text

    assert asyncio.run(live()) == "You asked: Why?"
    assert backend.is_closed.is_set()


async def until(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def test_an_engine_whose_making_was_cancelled_closes_once_it_has_started():
    backend = Slow()
    backend.may_close.set()
    before = threading.active_count()

    async def give_up() -> None:
        creating = asyncio.create_task(
            RAGCacheEngine.acreate(EngineConfig(backend="memory"), backend=backend)
        )
        await until(backend.is_starting)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating

    asyncio.run(give_up())
    assert not backend.is_closed.is_set()
    backend.may_start.set()
    assert backend.is_closed.wait(20)
    assert eventually(lambda: threading.active_count() <= before)


def test_a_start_that_fails_says_why_and_leaves_nothing():
    class Broken(MemoryBackend):
        async def start(self) -> ModelLimits:
            raise EngineStartFailed("no model, no engine")

    before = threading.active_count()
    with pytest.raises(EngineStartFailed, match="no model"):
        RAGCacheEngine(EngineConfig(backend="memory"), backend=Broken())
    with pytest.raises(EngineStartFailed, match="no model"):
        asyncio.run(RAGCacheEngine.acreate(EngineConfig(backend="memory"), backend=Broken()))
    assert eventually(lambda: threading.active_count() <= before)


def test_cancelling_a_close_does_not_stop_it():
    backend = Slow()
    backend.may_start.set()
    engine = RAGCacheEngine(EngineConfig(backend="memory"), backend=backend)

    async def give_up() -> None:
        closing = asyncio.create_task(engine.aclose())
        while not engine.closed:
            await asyncio.sleep(0.001)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(give_up())
    backend.may_close.set()
    assert backend.is_closed.wait(20)


def test_cancelling_a_forgetting_does_not_stop_it(engine_on: Callable[..., RAGCacheEngine]):
    class Thorough(MemoryBackend):
        may_forget = threading.Event()
        forgotten: Sequence[str] = ()

        async def forget(self, document_ids: Sequence[str]) -> None:
            while not self.may_forget.is_set():
                await asyncio.sleep(0.001)
            self.forgotten = document_ids

    backend = Thorough()
    engine = engine_on(backend)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.aforget(["slices"]), 0.05)

    asyncio.run(give_up())
    backend.may_forget.set()
    assert eventually(lambda: backend.forgotten == ["slices"])


def test_stats_are_a_snapshot_that_nobody_can_change(memory_engine: RAGCacheEngine):
    stats = memory_engine.stats()
    assert stats.tiers == TierCounters()
    with pytest.raises(FrozenInstanceError):
        stats.tiers.refused = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        stats.tiers.evicted["host"] = 1  # type: ignore[index]
    assert asdict(stats)["tiers"]["evicted"] == {"device": 0, "host": 0, "disk": 0}
    assert pickle.loads(pickle.dumps(stats)) == stats


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_what_refers_to_an_engine_refers_to_the_same_one(
    memory_engine: RAGCacheEngine, duplicate: Callable[[object], object]
) -> None:
    assert duplicate(memory_engine) is memory_engine
    assert duplicate({"engine": memory_engine}) == {"engine": memory_engine}


def test_an_engine_is_not_pickled_and_says_what_to_send_instead(
    memory_engine: RAGCacheEngine,
) -> None:
    with pytest.raises(EngineNeeded, match=r"engine\.config"):
        pickle.dumps(memory_engine)
