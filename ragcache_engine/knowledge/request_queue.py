"""Cache-aware reordering: of the requests that wait, the one with most cached and least to compute
goes first, and nobody waits for ever.

Source: RAGCache, §5.2.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


def cached_ratio(cached_tokens: int, computed_tokens: int) -> float:
    """The paper's OrderPriority: cached length by computation length."""
    return cached_tokens / computed_tokens if computed_tokens > 0 else math.inf


class ReorderQueue(Generic[T]):
    """Waiting requests. The best of the first `window` goes first; ties go by arrival.

    ratio: cached/computed of a request now, or None if nothing is known of it, which counts as 0. It
      is asked at every choice, for what is cached changes while requests wait.
    window: also how many requests that came later may go before one at most. 1 is first come, first
      served.
    """

    def __init__(self, ratio: Callable[[T], float | None], window: int = 32) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1 (first come, first served), got {window}")
        self._ratio = ratio
        self._window = window
        self._waiting: deque[_Waiting[T]] = deque()
        self._peeked: int | None = None  # the place peek() chose, while nothing has changed since

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """In the order of arrival, prepended ones first."""
        return (waiting.item for waiting in self._waiting)

    def push(self, item: T) -> None:
        self._peeked = None
        self._waiting.append(_Waiting(item))

    def prepend(self, item: T) -> None:
        """Put a request to the front: it was running and was preempted.

        Those behind it are not overtaken by this: it was before them already.
        """
        self._peeked = None
        self._waiting.appendleft(_Waiting(item))

    def peek(self) -> T:
        """What goes next. Chosen anew at each call; raises IndexError if nobody waits."""
        self._peeked = self._choose()
        return self._waiting[self._peeked].item

    def pop(self) -> T:
        """Take what goes next: what the last peek() showed, unless the queue has changed since.

        So a scheduler may look, make room (which changes what is cached), and then take the same
        request. O(window); raises IndexError if nobody waits.
        """
        at = self._choose() if self._peeked is None else self._peeked
        self._peeked = None
        chosen = self._waiting[at]
        for overtaken in islice(self._waiting, at):
            overtaken.times_overtaken += 1
        del self._waiting[at]
        return chosen.item

    def remove(self, item: T) -> None:
        """Take out a request that was cancelled. O(waiting); raises ValueError if it is not there."""
        for at, waiting in enumerate(self._waiting):
            if waiting.item is item or waiting.item == item:
                self._peeked = None
                del self._waiting[at]
                return
        raise ValueError(f"{item!r} does not wait in this queue")

    def _choose(self) -> int:
        """The place of the request to go next."""
        if not self._waiting:
            raise IndexError("no request waits")
        if len(self._waiting) == 1:
            return 0
        best, best_ratio = 0, -math.inf
        for at, waiting in enumerate(islice(self._waiting, self._window)):
            ratio = self._ratio(waiting.item) or 0.0
            if ratio > best_ratio:
                best, best_ratio = at, ratio
            if waiting.times_overtaken >= self._window:
                break  # nobody behind it may go before it any more
        return best


class _Waiting(Generic[T]):
    __slots__ = ("item", "times_overtaken")

    def __init__(self, item: T) -> None:
        self.item = item
        self.times_overtaken = 0
