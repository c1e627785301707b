"""A clock whose time passes only when a caller moves it."""

from __future__ import annotations


class VirtualClock:
    """Counts seconds from 0.

    Two threads may move the clock: the thread of the simulated model calls `run_model` and
    `wait_until`, and one other thread may call `pass_outside`. The clock keeps a sum for each of the
    two.
    """

    def __init__(self) -> None:
        self._model_s = 0.0
        self._outside_s = 0.0

    def now(self) -> float:
        return self._model_s + self._outside_s

    def run_model(self, seconds: float) -> None:
        """Let the model compute for this many seconds."""
        self._model_s += seconds

    def wait_until(self, at_s: float) -> None:
        """Let the model idle until this time; do nothing if the time has passed."""
        self._model_s += max(0.0, at_s - self.now())

    def pass_outside(self, seconds: float) -> None:
        """Let seconds pass outside the model, as during a search."""
        self._outside_s += seconds
