"""A lock for many readers or one writer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedLock:
    """Many readers hold it together, a writer holds it alone, and a waiting writer keeps new readers out.

    A thread may read while it already reads, as a filter does that looks something up in its own store.
    It may not write while it reads, because it would wait for itself.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writers_waiting = 0
        self._is_writing = False
        self._thread_state = threading.local()

    @contextmanager
    def reading(self) -> Iterator[None]:
        depth = self._depth()
        if depth == 0:
            with self._condition:
                self._condition.wait_for(lambda: not self._is_writing and not self._writers_waiting)
                self._readers += 1
        self._thread_state.depth = depth + 1
        try:
            yield
        finally:
            self._thread_state.depth = depth
            if depth == 0:
                with self._condition:
                    self._readers -= 1
                    self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.refuse_readers()
        with self._condition:
            self._writers_waiting += 1
            try:
                self._condition.wait_for(lambda: not self._is_writing and not self._readers)
                self._is_writing = True
            finally:
                self._writers_waiting -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()

    def refuse_readers(self) -> None:
        """Raise RuntimeError if this thread is reading."""
        if self._depth():
            raise RuntimeError("a filter must not change or save the store that it is filtering")

    def _depth(self) -> int:
        return getattr(self._thread_state, "depth", 0)
