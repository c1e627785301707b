"""Cache-aware reordering: which waiting request is served next.

The request with the most cached and the least to compute is served first. No request is overtaken more
often than a limit allows.
Source: RAGCache, §5.2.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_REMEMBERED = 4096
"""Of how many requests that were taken out a queue remembers how often they were overtaken."""


def cached_ratio(cached_tokens: int, computed_tokens: int) -> float:
    """Return the paper's OrderPriority: cached length over computation length."""
    return cached_tokens / computed_tokens if computed_tokens > 0 else math.inf


class ReorderQueue(Generic[T]):
    """A queue of waiting requests that serves those with the highest cached ratio first.

    Only the first `window` requests by arrival compete. Of equal ones, the earlier is served first.

    ratio: returns a request's cached ratio now, or None if it is unknown, which counts as 0. The queue
      asks again at every choice, because what is cached changes while requests wait.
    fits: tells whether there is memory for a request now. One that must wait for memory lets those pass
      that need not, but no more often than others may overtake it. None: all fit.
    window: also the most requests that may overtake any one request, counted from its arrival through
      every time it is taken out and put back. 1 serves first come, first served.
    Raises ValueError for a window below 1.
    """

    def __init__(
        self,
        ratio: Callable[[T], float | None],
        window: int = 32,
        fits: Callable[[T], bool] | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1 (first come, first served), got {window}")
        self._ratio = ratio
        self._fits = fits
        self._window = window
        self._waiting: deque[_Waiting[T]] = deque()
        # By id: requests need no hash, and those that have ended are not kept in memory.
        self._overtaken_before: OrderedDict[int, int] = OrderedDict()
        self._peeked: int | None = None  # the place peek() chose, until the queue changes

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """Yield the requests in order of arrival; those put to the front come first."""
        return (waiting.item for waiting in self._waiting)

    def push(self, item: T) -> None:
        """Add a request that has just arrived."""
        self._peeked = None
        self._overtaken_before.pop(id(item), None)  # of an ended request that had the same id
        self._waiting.append(_Waiting(item))

    def prepend(self, item: T) -> None:
        """Put a request to the front, because it was preempted or could not run yet.

        This does not count as overtaking: the request was already served before those behind it. The
        request has as many overtakings left as when it was taken out.
        """
        self._peeked = None
        self._waiting.appendleft(_Waiting(item, self._overtaken_before.pop(id(item), 0)))

    def peek(self) -> T:
        """Choose the request to serve next, without taking it. Raises IndexError if none waits."""
        self._peeked = self._choose()
        return self._waiting[self._peeked].item

    def pop(self) -> T:
        """Take the request to serve next: the one the last peek() chose, unless the queue has changed.

        So a scheduler may peek, then make room, which changes what is cached, and still take the same
        request. O(window). Raises IndexError if no request waits.
        """
        at = self._choose() if self._peeked is None else self._peeked
        self._peeked = None
        chosen = self._waiting[at]
        for overtaken in islice(self._waiting, at):
            overtaken.times_overtaken += 1
        del self._waiting[at]
        if chosen.times_overtaken:
            self._overtaken_before[id(chosen.item)] = chosen.times_overtaken
            if len(self._overtaken_before) > MOST_REMEMBERED:
                self._overtaken_before.popitem(last=False)
        return chosen.item

    def remove(self, item: T) -> None:
        """Remove a request that was cancelled. O(waiting). Raises ValueError if it is not waiting."""
        for at, waiting in enumerate(self._waiting):
            if waiting.item is item or waiting.item == item:
                self._peeked = None
                del self._waiting[at]
                return
        raise ValueError(f"{item!r} does not wait in this queue")

    def _choose(self) -> int:
        """Return the place in the queue of the request to serve next."""
        if not self._waiting:
            raise IndexError("no request waits")
        if len(self._waiting) == 1:
            return 0
        ratios = []
        for waiting in islice(self._waiting, self._window):
            ratios.append(self._ratio(waiting.item) or 0.0)
            if waiting.times_overtaken >= self._window:
                break  # no request behind this one may overtake it any more
        best = max(range(len(ratios)), key=ratios.__getitem__)  # of equal ones the first
        if self._fits is None or self._fits(self._waiting[best].item):
            return best
        others = sorted(range(len(ratios)), key=ratios.__getitem__, reverse=True)
        return next((at for at in others if self._fits(self._waiting[at].item)), best)


class _Waiting(Generic[T]):
    __slots__ = ("item", "times_overtaken")

    def __init__(self, item: T, times_overtaken: int = 0) -> None:
        self.item = item
        self.times_overtaken = times_overtaken
