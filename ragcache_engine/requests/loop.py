"""An event loop on a thread of its own, so that synchronous and asynchronous callers share one engine."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ragcache_engine.errors import EngineInOtherProcess

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers on any thread. A daemon: it never keeps the interpreter alive.

    A forked child has a copy of the loop, but not its thread: there, nothing would ever run.
    """

    def __init__(self, name: str) -> None:
        """Start the thread, with this name."""
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    @property
    def is_in_this_process(self) -> bool:
        """Whether the caller's process started the thread; False in a forked child."""
        return os.getpid() == self._process

    def require_this_process(self) -> None:
        """Raise EngineInOtherProcess in a forked child. Takes no lock: its holder may not exist here."""
        if os.getpid() != self._process:
            raise EngineInOtherProcess(
                f"this engine belongs to process {self._process} and cannot serve process {os.getpid()}, "
                "which was forked from it: a fork copies no threads. Make a RAGCacheEngine in each "
                "process, after the fork (gunicorn: in post_fork, not under --preload; Celery: with "
                "--pool=threads), or start processes with multiprocessing's method 'spawn'; see "
                "docs/guides/workers.md"
            )

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop.

        Raises RuntimeError once stop() was called, and EngineInOtherProcess in a forked child.
        """
        try:
            self.require_this_process()
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except (RuntimeError, EngineInOtherProcess):
            coroutine.close()
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call this on the loop, after what was submitted earlier.

        Does nothing after stop(), or in a forked child.
        """
        if not self.is_in_this_process:
            return  # the child shares the socket that wakes the parent's loop
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback)

    def is_current_thread(self) -> bool:
        """Return whether the caller runs on this loop's thread."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the loop after its current step. Waits for its thread, unless that is the caller's.

        Does nothing in a forked child.
        """
        if self.loop.is_closed() or not self.is_in_this_process:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current_thread():
            self._thread.join()


def call_in_thread(function: Callable[[], T]) -> T:
    """Call a function on a thread of its own, and wait for its result.

    Whatever keeps a frame of the function, such as the traceback of an error, keeps no frame of the
    caller then.
    """
    return _begin_in_thread(function).result()


async def run_in_thread(function: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Call a function that blocks for long, and wait for its result without blocking the caller's loop.

    The function runs on a thread of its own, so it never waits for a free one in a pool. If the waiting
    task is cancelled, the function still runs to its end, and `undo` then gets its result.
    """
    result = _begin_in_thread(function)

    def undo_result() -> None:
        if undo and not result.exception():  # exception() waits for the function's end
            undo(result.result())

    try:
        return await asyncio.wrap_future(result)
    except asyncio.CancelledError:
        threading.Thread(target=undo_result, name="ragcache-undo").start()
        raise


def _begin_in_thread(function: Callable[[], T]) -> Future[T]:
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from now on nothing can cancel it

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, name="ragcache-blocking").start()
    return result


async def finish_even_if_cancelled(future: Future[T]) -> T:
    """Wait for a future of another thread. Cancelling the waiting task does not cancel its work."""
    return await asyncio.shield(asyncio.wrap_future(future))
