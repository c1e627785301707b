"""Judges whether approximate answers still are what was measured: a running mean of their likeness."""

from __future__ import annotations

from collections import deque
from typing import Any

WINDOW = 50
"""How many of the latest comparisons count. None is judged before that many were made: a mean of few
answers falls below any bound by chance."""


class Drift:
    """Compares the mean of the last `window` likenesses with the least that is acceptable.

    least: the least mean of ROUGE-L, 0 to 1; None where none was measured, and nothing is switched off.
    window: how many of the last ones count, at least 20.
    compared: how many likenesses were noted so far. is_off: whether the mean has ever been too low; it
    stays so.
    """

    def __init__(self, least: float | None, window: int = WINDOW) -> None:
        if window < 20:
            raise ValueError(f"a mean of fewer than 20 answers tells nothing, got window={window}")
        self.least = least
        self.compared = 0
        self.is_off = False
        self._last: deque[float] = deque(maxlen=window)

    @property
    def mean(self) -> float | None:
        """The mean of the last likenesses; None before the first."""
        last = tuple(self._last)  # in one go: other threads read it too
        return sum(last) / len(last) if last else None

    def note(self, likeness: float) -> bool:
        """Note how alike two answers were, 0 to 1. Return True if just this switches borrowing off."""
        self._last.append(likeness)
        self.compared += 1
        mean, least = self.mean, self.least
        is_full = len(self._last) == self._last.maxlen
        if least is None or self.is_off or not is_full or mean is None or mean >= least:
            return False
        self.is_off = True
        return True

    def report(self) -> dict[str, Any]:
        """Return the fields of CacheStats that tell about rechecks. Any thread may call it."""
        mean = self.mean
        return {
            "rechecked": self.compared,
            "drift": None if mean is None else 1 - mean,
            "is_switched_off": self.is_off,
        }
