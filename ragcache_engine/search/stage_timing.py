"""Decide where to cut a search into parts, and after which parts to show a stage. Reads no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def even_ends(total: int, count: int, multiple_of: int = 1) -> list[int]:
    """Return the ends of at most `count` parts of about equal size. The last end is `total`.

    All other ends are multiples of `multiple_of`.
    """
    count = min(count, total)
    exact = (total * part / count / multiple_of for part in range(1, count))
    inner = {round(end) * multiple_of for end in exact}
    return [*sorted(end for end in inner if 0 < end < total), total]


class StageTiming:
    """Keep at least `slice_s` seconds of searching between two stages.

    Where a part would take less time, the next part is made larger, by the speed measured so far. So a
    search that takes less than one slice is cut at most once.
    ends: where the search may be cut, in ascending order; the last one is its end.
    """

    def __init__(self, ends: Sequence[int], slice_s: float) -> None:
        self._ends = ends
        self._slice_s = slice_s
        self._done = 0
        self._searched_s = 0.0
        self._unshown_s = 0.0

    def next_end(self) -> int:
        """Return where the next part should end."""
        short_s = self._slice_s - self._unshown_s
        wanted = self._done + 1.0
        if self._done and short_s > 0 and self._searched_s > 0:
            wanted = self._done + short_s * self._done / self._searched_s
        return self._ends[min(bisect_left(self._ends, wanted), len(self._ends) - 1)]

    def note_searched(self, end: int, seconds: float) -> None:
        """Note that searching the part up to `end` took this many seconds."""
        self._done = end
        self._searched_s += seconds
        self._unshown_s += seconds

    def reset_if_due(self) -> bool:
        """Return whether to show a stage now; if so, start to time the next one."""
        if self._unshown_s < self._slice_s:
            return False
        self._unshown_s = 0.0
        return True
