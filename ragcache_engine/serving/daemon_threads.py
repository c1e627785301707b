"""Runs calls that may take long, or never end, where they hold up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

T = TypeVar("T")


class DaemonThreads:
    """Runs calls in threads of their own, at most so many at a time.

    A loop's own threads serve every request, and its process waits for them before it ends. These serve
    nobody else, and end with the process.
    """

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)

    async def run(self, call: Callable[[], T]) -> T:
        """Return what the call returns, or raise what it raises. It goes on if nobody waits any more."""
        await self._room.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: Exception | None) -> None:
            self._room.release()
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(cast("T", result))

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except Exception as error:
                failure = error
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(finish, result, failure)

        threading.Thread(target=work, name="ragcache-apart", daemon=True).start()
        return await done
