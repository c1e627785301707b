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
    """One goal on one trace; trace "" for all of them.

    found: the figure in words, with where it was measured. is_met: None if undecided.
    """

    goal: str
    trace: str
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


def main_traces(plays: Sequence[Played]) -> list[str]:
    """Those that were played at several rates, on which the goals are decided."""
    return list(dict.fromkeys(trace for part, trace, _ in points(plays) if part == MAIN_PART))


def verdicts(plays: Sequence[Played]) -> list[Verdict]:
    """Of all goals that the plays say something of."""
    seen = compared(plays)
    found = []
    for trace in main_traces(plays):
        mine = [one for one in seen if one.point[:2] == (MAIN_PART, trace)]
        for key, times in TTFT_GOALS:
            if here := [one for one in mine if one.baseline == key]:
                found.append(_ttft_verdict(key, trace, times, here))
        if verdict := _throughput_verdict(plays, trace):
            found.append(verdict)
    if seen:
        found.append(_never_worse(seen))
    return found


def _ttft_verdict(key: str, trace: str, times: float, seen: Sequence[Compared]) -> Verdict:
    best = max(seen, key=lambda one: one.ratio.value)
    least = min(seen, key=lambda one: one.ratio.value)
    middle = statistics.median(one.ratio.value for one in seen)
    return Verdict(
        goal=f"TTFT at least {times:g} times lower than {SYSTEMS[key].name}",
        trace=trace,
        found=(
            f"at best {best.ratio}, {best.point[2]}; at worst {least.ratio}, {least.point[2]}; "
            f"median over the rates {middle:.2f}"
        ),
        is_met=best.ratio.value >= times,
    )


def _throughput_verdict(plays: Sequence[Played], trace: str) -> Verdict | None:
    lines = {key: curve(plays, MAIN_PART, trace, key) for key in ("off", FULL.key)}
    if any(len(line) < 2 for line in lines.values()):
        return None
    ours, theirs = throughput(lines[FULL.key]), throughput(lines["off"])
    ratio = ours.rate / theirs.rate
    return Verdict(
        goal=f"throughput at least {THROUGHPUT_GOAL:g} times that of {SYSTEMS['off'].name}",
        trace=trace,
        found=f"{ratio:.2f}: {ours} against {theirs} requests a second",
        is_met=_is_reached(ratio, ours, theirs),
    )


def _is_reached(ratio: float, ours: Throughput, theirs: Throughput) -> bool | None:
    """None if a rate that nobody was asked at would have to be known."""
    if theirs.is_least:
        return None
    return None if ours.is_least and ratio < THROUGHPUT_GOAL else ratio >= THROUGHPUT_GOAL


def _never_worse(seen: Sequence[Compared]) -> Verdict:
    worse = [one for one in seen if one.is_worse]
    return Verdict(
        goal="never a higher TTFT than any baseline by more than the noise",
        trace="",
        found=f"{len(worse)} of {len(seen)} comparisons were worse"
        + (", listed below" if worse else ""),
        is_met=not worse,
    )
