"""Clearing and forgetting end: with a named error if the backend is silent, dead or closed meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from ragcache_engine import (
    EngineClosed,
    EngineDied,
    RAGCacheEngine,
    RequestTimedOut,
)
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.protocols import BackendRequest, Delta

EngineOn = Callable[..., RAGCacheEngine]

ASK: dict[str, Callable[[RAGCacheEngine], object]] = {
    "forget": lambda engine: engine.forget(["tides"]),
    "aforget": lambda engine: asyncio.run(engine.aforget(["tides"])),
    "clear_cache": lambda engine: engine.clear_cache(),
    "aclear_cache": lambda engine: asyncio.run(engine.aclear_cache()),
}


class Silent(MemoryBackend):
    """Hears a wish to drop something, and never answers it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_asked = threading.Event()

    async def forget(self, document_ids: Sequence[str]) -> None:
        self.was_asked.set()
        await asyncio.Event().wait()

    async def clear_cache(self) -> bool:
        self.was_asked.set()
        await asyncio.Event().wait()
        return True


@pytest.mark.parametrize("ask", ASK)
def test_a_silent_backend_ends_the_wait_with_a_named_error(engine_on: EngineOn, ask: str):
    engine = engine_on(Silent(), request_timeout_s=0.05)
    with pytest.raises(RequestTimedOut, match=r"0\.05 s.*ask again, or raise request_timeout_s"):
        ASK[ask](engine)
    assert engine.generate("Why?").text == "You asked: Why?"


@pytest.mark.parametrize("ask", ASK)
def test_a_dead_backend_says_so(engine_on: EngineOn, ask: str):
    def die(step: int) -> None:
        if step < 2:  # in both attempts of the first question
            raise EngineDied("the process is gone")

    engine = engine_on(MemoryBackend(fault=die))
    with pytest.raises(EngineDied):
        engine.generate("Why?")
    with pytest.raises(EngineDied, match="the process is gone"):
        ASK[ask](engine)
    assert engine.generate("Why?").text == "You asked: Why?"
    ASK[ask](engine)


@pytest.mark.parametrize("ask", ASK)
def test_closing_the_engine_ends_the_wait(engine_on: EngineOn, ask: str):
    engine = engine_on(backend := Silent())
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ASK[ask](engine)
        except BaseException as error:
            errors.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert backend.was_asked.wait(20)
    engine.close()
    waiting.join(20)
    assert [type(error) for error in errors] == [EngineClosed]


def test_a_backend_that_is_busy_with_others_is_not_silent(engine_on: EngineOn):
    """Forgetting waits in the same queue as requests do."""

    class Busy(MemoryBackend):
        may_forget = asyncio.Event()

        async def forget(self, document_ids: Sequence[str]) -> None:
            await self.may_forget.wait()
            await super().forget(document_ids)

        async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
            try:
                async for delta in super().generate(request):
                    await asyncio.sleep(0.02)
                    yield delta
            finally:
                self.may_forget.set()

    engine = engine_on(Busy(), request_timeout_s=0.2)
    with engine.stream("word " * 30) as pieces:  # takes longer than the timeout
        next(pieces)
        engine.forget(["tides"])
        assert pieces.answer().text


def test_an_error_of_the_backends_own_clock_stays_what_it_is(engine_on: EngineOn):
    class Late(MemoryBackend):
        async def forget(self, document_ids: Sequence[str]) -> None:
            raise TimeoutError("the disk is slow")

    with pytest.raises(TimeoutError, match="the disk is slow") as caught:
        engine_on(Late()).forget(["tides"])
    assert not isinstance(caught.value, RequestTimedOut)
