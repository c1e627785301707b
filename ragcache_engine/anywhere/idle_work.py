"""Does work while a backend has no request, and stops at once when one comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from ragcache_engine.errors import EngineDied

IDLE_S = 0.2
"""Seconds without any request before work begins."""


class IdleWork:
    """Calls a coroutine function again and again while no request runs, and cancels it if one comes.

    All methods belong to the engine's loop.
    do_next: does the next piece of work. A piece that is cancelled must be there again afterwards, and so
      must one during which the model dies: all work then ends until the next request has ended, which
      starts the model anew.
    has_more: whether there is a piece to do. idle_s: seconds without any request before work begins.
    pauses: how often work was paused. A request that began before the latest pause may know of what had
      to go in it, and so leaves no work.
    """

    def __init__(
        self,
        do_next: Callable[[], Awaitable[None]],
        has_more: Callable[[], bool],
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        self._do_next = do_next
        self._has_more = has_more
        self._idle_s = idle_s
        self.pauses = 0
        self._running = 0
        self._is_closed = True
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # cancelled, and not yet at their end

    def open(self) -> None:
        """Allow work; before, and after `close`, none is done."""
        self._is_closed = False

    async def close(self) -> None:
        """End the piece that is being done, and begin no other."""
        self._is_closed = True
        await self._cancel()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Do no work while a request runs."""
        self._interrupt()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self.begin()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Do no work meanwhile. Every piece that was begun has ended when this begins."""
        self.pauses += 1
        self._running += 1
        try:
            await self._cancel()
            yield
        finally:
            self._running -= 1
            self.begin()

    def begin(self) -> None:
        """Begin to work once the backend has been idle for a while, if there is anything to do."""
        if self._running or self._is_closed or not self._has_more():
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        await asyncio.sleep(self._idle_s)
        with suppress(EngineDied):
            while self._has_more():
                await self._do_next()

    def _interrupt(self) -> None:
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _cancel(self) -> None:
        self._interrupt()
        if self._ending:
            await asyncio.wait(self._ending)
