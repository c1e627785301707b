"""Compares RAGCache with every baseline, point by point, and tells which differences count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comparing.figures import Point, Ratio, plays_at, points, ttft_ratio
from comparing.plays import Play
from comparing.systems import FULL

MAIN_PART = "main"
BASELINES = ("off", "on", "defaults", "lru", "arc")
SMALLEST = 0.03
"""Never count a difference below this share: a machine's clock and scheduler vary by themselves."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """RAGCache against one baseline at one point."""

    point: Point
    baseline: str
    ratio: Ratio

    @property
    def is_worse(self) -> bool:
        return self.ratio.high < 1 and self.ratio.value < 1 - SMALLEST

    @property
    def is_better(self) -> bool:
        return self.ratio.low > 1 and self.ratio.value > 1 + SMALLEST


def compare_all(plays: Sequence[Play], ours: str = FULL.key) -> list[Comparison]:
    """Compare RAGCache with every baseline that was measured at the same point, for every point."""
    found = []
    for point in points(plays):
        systems = plays_at(plays, point)
        if ours in systems:
            found += [
                Comparison(point, key, ttft_ratio(systems[key], systems[ours]))
                for key in BASELINES
                if key in systems
            ]
    return found


def main_traces(plays: Sequence[Play]) -> list[str]:
    """Return the traces of the main part, which are played at several rates."""
    return list(dict.fromkeys(trace for part, trace, _ in points(plays) if part == MAIN_PART))
