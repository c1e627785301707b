"""Replaces vLLM's queue of waiting requests: those with the most cached are served first."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from ragcache_engine.knowledge import ReorderQueue


class WaitingQueue(ReorderQueue[Request], RequestQueue):
    """Takes the place of a scheduler's `waiting` queue that serves first come, first served.

    It is a ReorderQueue under the names that vLLM calls.
    """

    def add_request(self, request: Request) -> None:
        self.push(request)

    def pop_request(self) -> Request:
        return self.pop()

    def peek_request(self) -> Request:
        return self.peek()

    def prepend_request(self, request: Request) -> None:
        self.prepend(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.prepend(request)

    def remove_request(self, request: Request) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = set(requests)
        for request in [waiting for waiting in self if waiting in gone]:
            self.remove(request)
