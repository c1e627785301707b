"""Requests end when nobody reads them any more, and every one of them is counted."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest
from waiting import eventually

from ragcache_engine import (
    Document,
    EngineClosed,
    EngineDied,
    EngineStartFailed,
    InvalidArgument,
    MemoryBackend,
    RAGCacheEngine,
    RequestTimedOut,
    SamplingOptions,
)
from ragcache_engine.protocols import BackendRequest, Delta

PROMPT = "Why is the sky blue, and the sea as well? " * 16
TWELVE = SamplingOptions(max_tokens=12)
ENDLESS = SamplingOptions(max_tokens=None, ignore_eos=True)
FOR_EVER = "Count for ever: one two three " * 60


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
@pytest.mark.slow
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


def test_a_stream_without_any_pieces_left_is_no_answer(engine: RAGCacheEngine):
    stream = engine.stream(PROMPT, options=TWELVE)
    assert list(stream)
    with pytest.raises(InvalidArgument, match="read to its end"):
        stream.answer()


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


class Mortal(MemoryBackend):
    """A backend that a test kills, and that comes up again only if it may."""

    def __init__(self, *, refuses: int = 0, waits_for: threading.Event | None = None) -> None:
        super().__init__(fault=self._die)
        self.starts = 0
        self.is_killed = False
        self._refuses = refuses
        self._waits_for = waits_for

    async def start(self):
        self.starts += 1
        if self.starts > 1:
            self.is_killed = False
            if self._waits_for is not None:
                await asyncio.to_thread(self._waits_for.wait)
            if self.starts <= 1 + self._refuses:
                raise EngineStartFailed("there is no memory")
        return await super().start()

    def _die(self, step: int) -> None:
        if self.is_killed:
            raise EngineDied("the process was killed")


def killed(
    engine_on: Callable[..., RAGCacheEngine],
) -> tuple[threading.Event, Mortal, RAGCacheEngine]:
    """Return an engine whose model is dead, and what lets it start again."""
    may_start = threading.Event()
    backend = Mortal(waits_for=may_start)
    engine = engine_on(backend)
    backend.is_killed = True
    return may_start, backend, engine


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragcache_engine.requests.runner.RESTART_WAITS_S", (0.0, 0.0, 0.0))


def ask_at_once(engine: RAGCacheEngine, count: int) -> list[str]:
    """Return the name of each request's error, or its answer."""
    heard: list[str] = []

    def ask(number: int) -> None:
        try:
            heard.append(engine.generate(f"question {number} " * 30, options=TWELVE).text)
        except Exception as error:
            heard.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


@pytest.mark.usefixtures("no_waits")
def test_one_death_is_followed_by_the_same_few_starts_however_many_requests_it_hit(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = Mortal(refuses=100)
    engine = engine_on(backend)
    backend.is_killed = True
    heard = ask_at_once(engine, 40)
    assert backend.starts == 1 + 3
    assert all("3 attempts to start it again failed" in one for one in heard), heard
    assert all("there is no memory" in one for one in heard)
    with pytest.raises(EngineDied, match="make a new RAGCacheEngine"):
        engine.generate("and later?")
    assert backend.starts == 1 + 3


@pytest.mark.usefixtures("no_waits")
def test_a_model_that_starts_at_the_third_attempt_answers_everybody(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = Mortal(refuses=2)
    engine = engine_on(backend)
    backend.is_killed = True
    heard = ask_at_once(engine, 12)
    assert backend.starts == 4
    assert all(one.startswith("You asked: question") for one in heard), heard


def test_who_asks_during_a_restart_waits_like_the_others(
    engine_on: Callable[..., RAGCacheEngine],
):
    may_start, backend, engine = killed(engine_on)
    first = threading.Thread(target=engine.generate, args=("the one that finds it dead",))
    first.start()
    assert eventually(lambda: backend.starts == 2)
    heard: list[str] = []
    second = threading.Thread(target=lambda: heard.append(engine.generate("a new one").text))
    second.start()
    second.join(0.2)
    assert second.is_alive()  # neither refused nor lost
    may_start.set()
    first.join(20)
    second.join(20)
    assert heard == ["You asked: a new one"]


class Deaf(MemoryBackend):
    """A backend that lives and hears nothing until it is started again."""

    starts = 0

    async def start(self):
        self.starts += 1
        return await super().start()

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if self.starts == 1:
            await asyncio.Event().wait()
        async for delta in super().generate(request):
            yield delta


def test_a_backend_that_is_silent_twice_is_restarted_for_those_who_come_later(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = Deaf()
    engine = engine_on(backend, request_timeout_s=0.2)
    with pytest.raises(RequestTimedOut):
        engine.generate("Is anybody there?")
    assert engine.generate("And now?").text == "You asked: And now?"
    assert backend.starts == 2


def test_while_the_model_starts_again_a_requests_time_stands_still(
    engine_on: Callable[..., RAGCacheEngine],
):
    may_start, backend, engine = killed(engine_on)
    waking = threading.Timer(0.5, may_start.set)
    waking.start()
    assert engine.generate("Who waits?", timeout_s=0.3).text == "You asked: Who waits?"
    assert backend.starts == 2
    waking.join()


def test_templates_that_never_return_hold_up_three_answers_and_no_more(
    engine_on: Callable[..., RAGCacheEngine], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ragcache_engine.requests.runner.LEARN_S", 0.05)
    engine, ended = engine_on(MemoryBackend()), threading.Event()
    submitted: list[object] = []
    learners = engine._runtime._requests._learners
    submit = learners.submit
    monkeypatch.setattr(
        learners, "submit", lambda call: submitted.append(call) or submit(ended.wait)
    )
    for number in range(6):
        with engine.retrieval(f"Question {number}?") as retrieval:
            retrieval.found([Document("sky", "The sky is blue because air scatters light. " * 9)])
        engine.generate(
            f"{'The sky is blue because air scatters light. ' * 9}\n\nQuestion {number}?"
        )
    assert len(submitted) == 6
    assert engine._runtime._requests._learners_hang
    ended.set()


def test_closing_during_a_restart_ends_everybody(engine_on: Callable[..., RAGCacheEngine]):
    may_start, backend, engine = killed(engine_on)
    heard: list[str] = []
    asking = threading.Thread(target=lambda: heard.extend(ask_at_once(engine, 3)))
    asking.start()
    assert eventually(lambda: backend.starts == 2)
    waking = threading.Timer(0.2, may_start.set)
    waking.start()
    engine.close()
    asking.join(20)
    waking.join()
    assert len(heard) == 3
    assert all(one.startswith("EngineClosed") for one in heard), heard


def test_a_caller_who_leaves_during_a_restart_does_not_take_it_along(
    engine_on: Callable[..., RAGCacheEngine],
):
    may_start, backend, engine = killed(engine_on)
    stream = engine.stream("the one that leaves")
    assert eventually(lambda: backend.starts == 2)
    stream.close()
    may_start.set()
    assert engine.generate("who comes later").text == "You asked: who comes later"
    assert backend.starts == 2


def test_a_request_that_meets_a_close_starts_nothing(engine_on: Callable[..., RAGCacheEngine]):
    backend = Mortal()
    engine = engine_on(backend)
    prepared = engine._intake.prepare("too late", None, None, None)
    engine.close()
    heard: list[object] = []
    runner = engine._runtime._requests
    asyncio.run(runner.run(prepared, heard.append))
    assert isinstance(heard[-1], EngineClosed)
    assert backend.starts == 1


def test_a_request_with_a_timeout_ends_alone_and_the_backend_goes_on(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = Deaf()
    engine = engine_on(backend)
    with pytest.raises(RequestTimedOut, match=r"timeout of 0\.05 s"):
        engine.generate("Is anybody there?", timeout_s=0.05)
    assert backend.starts == 1
    assert (engine.stats().running, engine.stats().restarts) == (0, 0)
    with pytest.raises(InvalidArgument, match="timeout_s must be above 0"):
        engine.generate("Is anybody there?", timeout_s=0)
