"""Judges whether a run reached the goals taken from the paper."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ragcache_cli.bench.comparisons import MAIN_PART, Comparison, compare_all, main_traces
from ragcache_cli.bench.figures import Throughput, curve, throughput
from ragcache_cli.bench.plays import Play
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.markdown import table
from ragcache_cli.bench.report.run_description import is_disturbed
from ragcache_cli.bench.systems import FULL, SYSTEMS

PAPER_TTFT = "up to 4 times lower than vLLM with Faiss, up to 3.5 than SGLang"
TTFT_GOALS = (("off", 4.0), ("on", 2.0), ("lru", 1.25), ("arc", 1.25))
"""How many times lower than that of each system the mean TTFT of RAGCache should be."""
THROUGHPUT_GOAL = 2.1
"""How many times as high as that of vLLM without a cache the throughput should be; the paper's best."""


@dataclass(frozen=True, slots=True)
class GoalResult:
    """Whether one goal was reached. trace: the name of the trace; "" for all traces.

    found: the figure in words, and where it was measured. is_met: None if undecided.
    """

    goal: str
    trace: str
    found: str
    is_met: bool | None


def judge_goals(plays: Sequence[Play]) -> list[GoalResult]:
    """Judge every goal for which there are plays."""
    seen = compare_all(plays)
    found = []
    for trace in main_traces(plays):
        mine = [one for one in seen if one.point[:2] == (MAIN_PART, trace)]
        for key, times in TTFT_GOALS:
            if here := [one for one in mine if one.baseline == key]:
                found.append(_judge_ttft(key, trace, times, here))
        if result := _judge_throughput(plays, trace):
            found.append(result)
    if seen:
        found.append(_judge_never_worse(seen))
    return found


def _judge_ttft(key: str, trace: str, times: float, seen: Sequence[Comparison]) -> GoalResult:
    best = max(seen, key=lambda one: one.ratio.value)
    least = min(seen, key=lambda one: one.ratio.value)
    middle = statistics.median(one.ratio.value for one in seen)
    return GoalResult(
        goal=f"TTFT at least {times:g} times lower than {SYSTEMS[key].name}",
        trace=trace,
        found=(
            f"at best {best.ratio}, {best.point[2]}; at worst {least.ratio}, {least.point[2]}; "
            f"median over the rates {middle:.2f}"
        ),
        is_met=best.ratio.value >= times,
    )


def _judge_throughput(plays: Sequence[Play], trace: str) -> GoalResult | None:
    lines = {key: curve(plays, MAIN_PART, trace, key) for key in ("off", FULL.key)}
    if any(len(line) < 2 for line in lines.values()):
        return None
    ours, theirs = throughput(lines[FULL.key]), throughput(lines["off"])
    ratio = ours.rate / theirs.rate
    return GoalResult(
        goal=f"throughput at least {THROUGHPUT_GOAL:g} times that of {SYSTEMS['off'].name}",
        trace=trace,
        found=f"{ratio:.2f}: {ours} against {theirs} requests a second",
        is_met=_is_reached(ratio, ours, theirs),
    )


def _is_reached(ratio: float, ours: Throughput, theirs: Throughput) -> bool | None:
    """Return None if the answer depends on a rate at which no system was asked."""
    if theirs.is_least:
        return None
    return None if ours.is_least and ratio < THROUGHPUT_GOAL else ratio >= THROUGHPUT_GOAL


def _judge_never_worse(seen: Sequence[Comparison]) -> GoalResult:
    worse = [one for one in seen if one.is_worse]
    return GoalResult(
        goal="never a higher TTFT than any baseline by more than the noise",
        trace="",
        found=f"{len(worse)} of {len(seen)} comparisons were worse"
        + (", listed below" if worse else ""),
        is_met=not worse,
    )


def goals(record: RunRecord) -> Iterator[str]:
    """Write the section of the report on every goal: what was measured, and whether it was met."""
    found = judge_goals(record.seen.plays)
    if not found:
        return
    yield "## Goals"
    yield ""
    yield from table(
        (
            "goal",
            "trace",
            "",
            "measured: the baseline's TTFT over RAGCache's (90% of resamplings)",
        ),
        ((one.goal, one.trace or "all", _decided(record, one), one.found) for one in found),
    )
    yield f"The paper: TTFT {PAPER_TTFT}; throughput up to 2.1 and 1.8 times."
    yield 'As these say "up to", the best rate decides here too; the worst one stands beside it.'
    yield ""


def _decided(record: RunRecord, one: GoalResult) -> str:
    if one.is_met is None or is_disturbed(record):
        return "not decided"
    return "met" if one.is_met else "**missed**"
