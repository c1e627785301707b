"""What was to be reached, and whether it was: nothing here knows which answer is wanted."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_cli.bench.drive import Played
from ragcache_cli.bench.figures import (
    Point,
    Ratio,
    Throughput,
    at,
    curve,
    points,
    throughput,
    ttft_ratio,
)
from ragcache_cli.bench.systems import FULL, SYSTEMS

MAIN_PART = "main"
BASELINES = ("off", "on", "defaults", "lru", "arc")
TTFT_GOALS = (("off", 4.0), ("on", 2.0), ("lru", 1.25), ("arc", 1.25))
"""By how many times the mean TTFT of RAGCache is to be below that of each system."""
THROUGHPUT_GOAL = 2.1
"""Times that of vLLM without cache; the paper's best."""
SMALLEST = 0.03
"""A difference of less than this share is never called one: clocks and schedulers of machines wander."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal. found: the figure in words, with where it was measured. is_met: None if undecided."""

    goal: str
    found: str
    is_met: bool | None


@dataclass(frozen=True, slots=True)
class Compared:
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


def compared(plays: Sequence[Played], ours: str = FULL.key) -> list[Compared]:
    """At every point, against every baseline that was there."""
    found = []
    for point in points(plays):
        systems = at(plays, point)
        if ours in systems:
            found += [
                Compared(point, key, ttft_ratio(systems[key], systems[ours]))
                for key in BASELINES
                if key in systems
            ]
    return found


def verdicts(plays: Sequence[Played]) -> list[Verdict]:
    """Of all goals that the plays say something of."""
    seen = compared(plays)
    found = []
    for key, times in TTFT_GOALS:
        here = [one for one in seen if one.point[0] == MAIN_PART and one.baseline == key]
        if here:
            found.append(_ttft_verdict(key, times, here))
    if verdict := _throughput_verdict(plays):
        found.append(verdict)
    if seen:
        found.append(_never_worse(seen))
    return found


def _ttft_verdict(key: str, times: float, seen: Sequence[Compared]) -> Verdict:
    best = max(seen, key=lambda one: one.ratio.value)
    least = min(seen, key=lambda one: one.ratio.value)
    middle = statistics.median(one.ratio.value for one in seen)
    return Verdict(
        goal=f"TTFT at least {times:g} times lower than {SYSTEMS[key].name}",
        found=(
            f"at best {best.ratio}, {best.point[2]}; at worst {least.ratio}, {least.point[2]}; "
            f"median over the rates {middle:.2f}"
        ),
        is_met=best.ratio.value >= times,
    )


def _throughput_verdict(plays: Sequence[Played]) -> Verdict | None:
    traces = [trace for part, trace, _ in points(plays) if part == MAIN_PART]
    for trace in dict.fromkeys(traces):
        reached: dict[str, Throughput] = {}
        for key in ("off", FULL.key):
            if len(line := curve(plays, MAIN_PART, trace, key)) > 1:
                reached[key] = throughput(line)
        if len(reached) < 2:
            continue
        ours, theirs = reached[FULL.key], reached["off"]
        ratio = ours.rate / theirs.rate
        return Verdict(
            goal=f"throughput at least {THROUGHPUT_GOAL:g} times that of {SYSTEMS['off'].name}",
            found=f"{ratio:.2f}: {ours} against {theirs} requests a second ({trace})",
            # A baseline that no rate saturated may take far more; then the ratio says nothing.
            is_met=None if theirs.is_least else ratio >= THROUGHPUT_GOAL,
        )
    return None


def _never_worse(seen: Sequence[Compared]) -> Verdict:
    worse = [one for one in seen if one.is_worse]
    return Verdict(
        goal="never a higher TTFT than any baseline by more than the noise",
        found=f"{len(worse)} of {len(seen)} comparisons were worse"
        + (", listed below" if worse else ""),
        is_met=not worse,
    )
