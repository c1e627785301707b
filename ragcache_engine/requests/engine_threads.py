"""The threads that an engine's work for coroutines runs in: a few of its own for each kind of work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ragcache_engine.daemon_threads import AllThreadsBusy, DaemonThreads
from ragcache_engine.errors import RequestTimedOut

PREPARED_AT_ONCE = 8
"""How many prompts are tokenised at a time. More than the cores would only share them."""

RENDERED_AT_ONCE = 16
"""How many conversations are written at a time. A server may write them, and it is far away."""

SEARCHED_AT_ONCE = 32
"""How many searches run at a time, as many as asyncio's own threads on a large machine."""

T = TypeVar("T")


class EngineThreads:
    """Runs what coroutines wait for. No kind of work waits for another, nor for the caller's threads.

    The classes for LangChain and LlamaIndex use it, as `engine.threads`. A wait in them does not hold
    a thread while the model starts again.
    timeout_s: how long one call may take. until_up: waits while the model is being restarted.
    """

    def __init__(self, timeout_s: float, until_up: Callable[[], Awaitable[None]]) -> None:
        self._timeout_s = timeout_s
        self._until_up = until_up
        self._preparing = DaemonThreads(PREPARED_AT_ONCE, "ragcache-preparing")
        self._rendering = DaemonThreads(RENDERED_AT_ONCE, "ragcache-rendering")
        self._searching = DaemonThreads(SEARCHED_AT_ONCE, "ragcache-searching")

    async def prepare(self, call: Callable[[], T]) -> T:
        """Check and tokenise a prompt. Raises RequestTimedOut, or what the call raises."""
        return await self._end_in_time(self._preparing, call, "preparing a prompt")

    async def render(self, call: Callable[[], T]) -> T:
        """Write a conversation as a prompt, or read the calls of an answer. Raises as `prepare` does."""
        return await self._end_in_time(self._rendering, call, "a chat template or a tool parser")

    async def search(self, call: Callable[[], T]) -> T:
        """Search, or do what else asks a store or an embedding model. It may take as long as it takes.

        Raises RequestTimedOut if earlier searches let it not begin, or what the call raises.
        """
        try:
            return await self._searching.run(call, begin_within_s=self._timeout_s)
        except AllThreadsBusy:
            raise RequestTimedOut(
                f"{SEARCHED_AT_ONCE} searches have run for {self._timeout_s:g} s, so that this one could "
                f"not begin: see why the store or the embedding model does not answer"
            ) from None

    async def _end_in_time(self, threads: DaemonThreads, call: Callable[[], T], what: str) -> T:
        await self._until_up()
        try:
            async with asyncio.timeout(self._timeout_s) as wait:
                return await threads.run(call)
        except TimeoutError:
            if not wait.expired():
                raise
            raise RequestTimedOut(
                f"{what} took more than {self._timeout_s:g} s: send less at a time, or raise "
                f"request_timeout_s if it takes that long"
            ) from None
