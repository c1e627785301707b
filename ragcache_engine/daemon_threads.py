"""Runs calls that may take long, or never end, where they hold up nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class AllThreadsBusy(Exception):
    """Earlier calls kept all threads, so that this one never began."""


class DaemonThreads:
    """Runs calls in threads of its own, at most so many at a time; the others wait in order.

    A pool of concurrent.futures, such as a loop's own, serves everybody, and its process waits for it
    before it ends. These threads serve one kind of call, and end with the process. Each call sees the
    context variables of its caller.
    """

    def __init__(self, most: int, name: str = "ragcache-apart") -> None:
        self._most, self._name = most, name
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call this as soon as a thread is free. Until then the future can be cancelled."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting[future] = partial(copy_context().run, call)
            is_full = self._threads == self._most
            self._threads += not is_full
        future.add_done_callback(self._leave)
        if is_full:
            return future
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except BaseException:
            with self._lock:
                self._threads -= 1
            self._leave(future)
            raise
        return future

    def _leave(self, future: Future[Any]) -> None:
        """Keep a call no longer that nobody waits for, or that was begun."""
        with self._lock:
            self._waiting.pop(future, None)

    async def run(self, call: Callable[[], T], begin_within_s: float | None = None) -> T:
        """Return what the call returns, or raise what it raises. It goes on if nobody waits any more.

        begin_within_s: raise AllThreadsBusy, and never call this, if no thread is free for so long.
        """
        future = self.submit(call)
        result = asyncio.wrap_future(future)
        try:
            if begin_within_s is not None:
                await asyncio.wait({result}, timeout=begin_within_s)
                if future.cancel():
                    raise AllThreadsBusy
            return await result
        finally:
            result.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                future, call = self._waiting.popitem(last=False)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # the thread must keep nothing alive while the next call runs
