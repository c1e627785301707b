"""How large a share of the late requests a key has: a hot document needs more than one replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ragcache_engine.fleet.path import Key


class Popularity:
    """Counts keys over the last one or two windows of requests, and forgets older ones.

    window: how many requests a window has. Its memory is that of the keys of two windows.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"a window has at least one request, got {window}")
        self.window = window
        self._now: Counter[Key] = Counter()
        self._before: Counter[Key] = Counter()
        self._seen = self._seen_before = 0

    def count(self, keys: Iterable[Key]) -> None:
        """Count one request with these keys."""
        if self._seen >= self.window:
            self._before, self._seen_before = self._now, self._seen
            self._now, self._seen = Counter(), 0
        self._now.update(keys)
        self._seen += 1

    def share(self, key: Key) -> float:
        """Return the share of requests that had this key, from 0 to 1.

        No share is believed before half a window has passed: the very first request has all of them.
        """
        seen = self._seen + self._seen_before
        if seen < self.window / 2:
            seen = self.window
        return (self._now[key] + self._before[key]) / seen
