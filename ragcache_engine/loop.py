"""An event loop on a thread of its own, so that synchronous and asynchronous callers share one engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of callers from any thread. A daemon: it never keeps the interpreter alive."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Raises RuntimeError once stop() was called."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it on the loop, after what was submitted before; not at all once stop() was called."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback)

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the loop after what runs now, and wait for its thread unless called from it."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current_thread():
            self._thread.join()
