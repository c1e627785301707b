"""Replaces vLLM's queue of waiting requests: those with the most cached are served first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from ragcache_engine.knowledge import ReorderQueue


class WaitingQueue(RequestQueue):
    """Takes the place of a scheduler's `waiting` queue that serves first come, first served.

    ratio, window, fits: as in ReorderQueue.
    """

    def __init__(
        self,
        ratio: Callable[[Request], float | None],
        window: int,
        fits: Callable[[Request], bool] | None = None,
    ) -> None:
        self._queue: ReorderQueue[Request] = ReorderQueue(ratio, window, fits)

    def add_request(self, request: Request) -> None:
        self._queue.push(request)

    def pop_request(self) -> Request:
        return self._queue.pop()

    def peek_request(self) -> Request:
        return self._queue.peek()

    def prepend_request(self, request: Request) -> None:
        self._queue.prepend(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._queue.prepend(request)

    def remove_request(self, request: Request) -> None:
        self._queue.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        for request in [waiting for waiting in self._queue if waiting in gone]:
            self._queue.remove(request)

    def __bool__(self) -> bool:
        return len(self._queue) > 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)
