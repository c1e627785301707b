"""Judges whether approximate answers still are what was measured, from their likeness to exact ones."""

from __future__ import annotations

from collections import deque
from typing import Any

WINDOW = 50
"""How many of the latest comparisons the reported mean is of."""

ALLOWANCE = 0.05
"""How far below the least acceptable mean answers are before that counts."""

MOST_SHORTFALL = 10.0
"""What may be missing in sum. Of 100 streams of 20,000 answers whose mean is just acceptable (drawn from
measured ROUGE-L, with a standard deviation of 0.22) none reached it; answers 0.2 worse did after 60."""


class Drift:
    """Adds up by how much likenesses fall short of the least mean: a cumulative sum (CUSUM; Page, 1954).

    A mean of the latest answers would not do: who looks at it after each of thousands of answers sees it
    below any bound, by chance.
    least: the least mean of ROUGE-L, 0 to 1; None where none was measured, and nothing is switched off.
    compared: how many likenesses were noted so far. is_off: whether too much has ever been missing; it
    stays so.
    """

    def __init__(self, least: float | None) -> None:
        self.least = least
        self.compared = 0
        self.is_off = False
        self._shortfall = 0.0
        self._last: deque[float] = deque(maxlen=WINDOW)

    @property
    def mean(self) -> float | None:
        """The mean of the last likenesses; None before the first."""
        last = tuple(self._last)  # in one go: other threads read it too
        return sum(last) / len(last) if last else None

    def note(self, likeness: float) -> bool:
        """Note how alike two answers were, 0 to 1. Return True if just this switches borrowing off."""
        self._last.append(likeness)
        self.compared += 1
        if self.least is None or self.is_off:
            return False
        self._shortfall = max(0.0, self._shortfall + self.least - ALLOWANCE - likeness)
        self.is_off = self._shortfall > MOST_SHORTFALL
        return self.is_off

    def report(self) -> dict[str, Any]:
        """Return the fields of CacheStats that tell about rechecks. Any thread may call it."""
        mean = self.mean
        return {
            "rechecked": self.compared,
            "drift": None if mean is None else 1 - mean,
            "is_switched_off": self.is_off,
        }
