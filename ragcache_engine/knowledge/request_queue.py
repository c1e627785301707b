"""Cache-aware reordering: which waiting request is served next.

The request with the most cached and the least to compute is served first. No request is overtaken more
often than a limit allows. The limit is the paper's window, or grows with the queue: where many more wait
than the window is wide, each would soon be overtaken as often as it may be, and all go by arrival.
Source: RAGCache, §5.2.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from operator import attrgetter
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_REMEMBERED = 4096
"""Of how many requests that were taken out a queue remembers how often they were overtaken."""

MOST_OVERTAKING = 0.75
"""How many others may overtake a request, as a share of those that waited when it came: a compromise.
With more, the mean wait falls further, but the p99 exceeds that of first come, first served."""

MOST_COMPETING = 1024
"""How many waiting requests compete at most, so that choosing stays quick however many wait."""


def cached_ratio(cached_tokens: int, computed_tokens: int) -> float:
    """Return the paper's OrderPriority: cached length over computation length."""
    return cached_tokens / computed_tokens if computed_tokens > 0 else math.inf


class ReorderQueue(Generic[T]):
    """A queue of waiting requests that serves those with the highest cached ratio first.

    Of equal ones, the earlier is served first. No request is overtaken by more others than `window`, or
    than three quarters of those that waited when it came if that is more: so it never waits for twice as
    many as in order of arrival. That is counted through every time it is taken out and put back.

    ratio: returns a request's cached ratio now, or None if it is unknown, which counts as 0. What is
      cached changes while requests wait, so each choice asks again: for the first `window` by arrival,
      and for the chosen one.
    window: see above; 1 serves first come, first served.
    fits: tells whether there is memory for a request now. One that must wait for memory lets those pass
      that need not, but no more often than others may overtake it. None: all fit.
    glance: returns the ratio of one behind the first `window`. At each choice a window of these is asked
      for, new ones first, then in turn, so most are not of now. It must change nothing. None: as `ratio`.
    Raises ValueError for a window below 1.
    """

    def __init__(
        self,
        ratio: Callable[[T], float | None],
        window: int = 32,
        fits: Callable[[T], bool] | None = None,
        glance: Callable[[T], float | None] | None = None,
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1 (first come, first served), got {window}")
        self._ratio = ratio
        self._fits = fits
        self._glance = glance or ratio
        self._window = window
        self._waiting: deque[_Waiting[T]] = deque()
        self._aside: list[_Waiting[T]] = []
        self._glanced = 0  # how many of those behind the window, in turn
        # Times overtaken, and times at most. By id: requests need no hash, and those that have ended are
        # not kept in memory.
        self._overtaken_before: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._peeked: int | None = None  # the place peek() chose, until the queue changes
        self._behind, self._in_front = count(), count(1)

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
        most_times = max(self._window, int(MOST_OVERTAKING * len(self._waiting)))
        self._waiting.append(_Waiting(item, 0, most_times, next(self._behind)))

    def prepend(self, item: T) -> None:
        """Put a request to the front, because it was preempted or could not run yet.

        This does not count as overtaking: the request was already served before those behind it. The
        request has as many overtakings left as when it was taken out.
        """
        self._peeked = None
        before = self._overtaken_before.pop(id(item), (0, self._window))
        self._waiting.appendleft(_Waiting(item, *before, -next(self._in_front)))

    def peek(self) -> T:
        """Choose the request to serve next, without taking it. Raises IndexError if none waits."""
        self._peeked = self._choose()
        return self._waiting[self._peeked].item

    def pop(self) -> T:
        """Take the request to serve next: the one the last peek() chose, unless the queue has changed.

        So a scheduler may peek, then make room, which changes what is cached, and still take the same
        request. O(waiting), but a window of ratios. Raises IndexError if no request waits.
        """
        at = self._choose() if self._peeked is None else self._peeked
        self._peeked = None
        chosen = self._waiting[at]
        for overtaken in islice(self._waiting, at):
            overtaken.times_overtaken += 1
        del self._waiting[at]
        self._overtaken_before[id(chosen.item)] = chosen.times_overtaken, chosen.most_times
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

    def set_aside(self, is_held_back: Callable[[T], bool]) -> None:
        """Take these requests out of the queue, until `bring_back`. O(waiting)."""
        self._peeked = None
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            (self._aside if is_held_back(each.item) else self._waiting).append(each)

    def bring_back(self) -> None:
        """Put all that were set aside to where they waited. O(waiting)."""
        self._peeked = None
        self._waiting = deque(heapq.merge(self._waiting, self._aside, key=attrgetter("place")))
        self._aside = []

    def _choose(self) -> int:
        """Return the place in the queue of the request to serve next."""
        if not self._waiting:
            raise IndexError("no request waits")
        if len(self._waiting) == 1 or self._window == 1:
            return 0
        competing = []
        for waiting in islice(self._waiting, MOST_COMPETING):
            competing.append(waiting)
            if waiting.times_overtaken >= waiting.most_times:
                break  # no request behind this one may overtake it any more
        for waiting in islice(competing, self._window):
            waiting.ratio = self._ratio(waiting.item) or 0.0
        self._glance_at(competing[self._window :])
        ratios = [waiting.ratio or 0.0 for waiting in competing]
        best = self._find_best(competing, ratios)
        if self._fits is None or self._fits(competing[best].item):
            return best
        others = sorted(range(len(ratios)), key=ratios.__getitem__, reverse=True)[: self._window]
        return next((at for at in others if self._fits(competing[at].item)), best)

    def _glance_at(self, later: Sequence[_Waiting[T]]) -> None:
        """Ask anew for the ratios of some of those behind the window, which take turns."""
        new = [waiting for waiting in later if waiting.ratio is None][: self._window]
        left = min(self._window, len(later)) - len(new)
        in_turn = [later[(self._glanced + step) % len(later)] for step in range(left)]
        self._glanced += left
        for waiting in (*new, *in_turn):
            waiting.ratio = self._glance(waiting.item) or 0.0

    def _find_best(self, competing: Sequence[_Waiting[T]], ratios: list[float]) -> int:
        """Return the place of the highest ratio, of equal ones the first; correct it if it is old.

        At most a window of old ones is corrected: then the best of what is known for sure is returned.
        """
        known = list(range(min(self._window, len(ratios))))
        for _ in range(self._window):
            best = max(range(len(ratios)), key=ratios.__getitem__)
            if best < self._window:
                return best
            old, waiting = ratios[best], competing[best]
            ratios[best] = waiting.ratio = self._ratio(waiting.item) or 0.0
            if ratios[best] >= old:
                return best
            known.append(best)
        return max(known, key=ratios.__getitem__)


class _Waiting(Generic[T]):
    """place: orders those that wait. ratio: as of the last time that the queue asked; None before."""

    __slots__ = ("item", "most_times", "place", "ratio", "times_overtaken")

    def __init__(self, item: T, times_overtaken: int, most_times: int, place: int) -> None:
        self.item = item
        self.place = place
        self.times_overtaken = times_overtaken
        self.most_times = most_times
        self.ratio: float | None = None
