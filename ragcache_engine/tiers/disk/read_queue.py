"""The reads that wait for a thread: those a request waits for first, and none that nobody wants."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadQueue(Generic[T]):
    """Gives reads to several threads, the urgent ones first, each kind in the order of arrival."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, T] = OrderedDict()
        self._ordinary: OrderedDict[str, T] = OrderedDict()
        self._running: dict[int, float] = {}  # by thread: when its read began
        self._is_closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return how many reads wait for a thread."""
        return len(self._urgent) + len(self._ordinary)

    def put(self, name: str, read: T, *, is_urgent: bool) -> None:
        """Add a read. name: of its file."""
        with self._changed:
            (self._urgent if is_urgent else self._ordinary)[name] = read
            self._changed.notify()

    def hasten(self, name: str) -> None:
        """Make a waiting read urgent; nothing happens if it does not wait."""
        with self._changed:
            if (read := self._ordinary.pop(name, None)) is not None:
                self._urgent[name] = read

    def cancel(self, name: str) -> bool:
        """Take a read back; return False if it does not wait any more."""
        with self._changed:
            return any(
                queue.pop(name, None) is not None for queue in (self._urgent, self._ordinary)
            )

    def take(self) -> T | None:
        """Wait for a read and begin it; None after `close`, once all are taken."""
        with self._changed:
            self._running.pop(threading.get_ident(), None)
            while not len(self):
                if self._is_closed:
                    return None
                self._changed.wait()
            queue = self._urgent or self._ordinary
            self._running[threading.get_ident()] = time.monotonic()
            return queue.popitem(last=False)[1]

    def take_more(self, most: int) -> list[T]:
        """Begin reads beside the one just taken, as far as some wait, without waiting for any."""
        with self._changed:
            taken: list[T] = []
            while len(self) and len(taken) < most:
                queue = self._urgent or self._ordinary
                taken.append(queue.popitem(last=False)[1])
            return taken

    @property
    def running(self) -> int:
        """How many reads are running."""
        return len(self._running)

    def longest_running_s(self) -> float:
        """Return for how long the oldest read has been running; 0 if none is."""
        began = min(list(self._running.values()), default=None)
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        """End `take` for every thread once the queue is empty."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
