"""Where to cut a search, and which cuts to make: pure decisions, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def even_ends(total: int, count: int, multiple_of: int = 1) -> list[int]:
    """Ends of at most `count` pieces of about equal size, the last one `total`.

    The others are multiples of `multiple_of`.
    """
    count = min(count, total)
    exact = (total * piece / count / multiple_of for piece in range(1, count))
    inner = {round(end) * multiple_of for end in exact}
    return [*sorted(end for end in inner if 0 < end < total), total]


class StageTiming:
    """Makes stages come no closer than `slice_s` seconds of searching.

    Pieces that go by more quickly are made larger, as the speed seen so far says, so an index that
    is searched within one slice is cut at most once.
    """

    def __init__(self, ends: Sequence[int], slice_s: float) -> None:
        self._ends = ends
        self._slice_s = slice_s
        self._done = 0
        self._searched_s = 0.0
        self._unshown_s = 0.0

    def next_end(self) -> int:
        """Where the next piece should end."""
        short_s = self._slice_s - self._unshown_s
        wanted = self._done + 1.0
        if self._done and short_s > 0 and self._searched_s > 0:
            wanted = self._done + short_s * self._done / self._searched_s
        return self._ends[min(bisect_left(self._ends, wanted), len(self._ends) - 1)]

    def note_searched(self, end: int, seconds: float) -> None:
        """The piece up to `end` has been searched."""
        self._done = end
        self._searched_s += seconds
        self._unshown_s += seconds

    def reset_if_due(self) -> bool:
        """Whether to show a stage now. Asking says that it is shown if so."""
        if self._unshown_s < self._slice_s:
            return False
        self._unshown_s = 0.0
        return True
