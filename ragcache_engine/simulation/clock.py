"""Time that passes only when somebody says so."""

from __future__ import annotations


class VirtualClock:
    """Counts seconds from 0.

    Two threads may move the clock: the one that runs the simulated model calls `run_model` and
    `wait_until`, any one other calls `pass_outside`. Each has a sum of its own.
    """

    def __init__(self) -> None:
        self._model_s = 0.0
        self._outside_s = 0.0

    def now(self) -> float:
        return self._model_s + self._outside_s

    def run_model(self, seconds: float) -> None:
        """Let the model compute for so many seconds."""
        self._model_s += seconds

    def wait_until(self, at_s: float) -> None:
        """Let the model idle until a time; do nothing if that has passed."""
        self._model_s += max(0.0, at_s - self.now())

    def pass_outside(self, seconds: float) -> None:
        """Let time pass outside the model, as a search takes it."""
        self._outside_s += seconds
