"""The sections with all systems side by side: a table for each point, and throughput for each trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comparing.comparisons import MAIN_PART, main_traces
from comparing.figures import (
    Point,
    SystemFigures,
    curve,
    plays_at,
    points,
    system_figures,
    throughput,
    ttft_ratio,
)
from comparing.plan import ABLATION
from comparing.record import RunRecord
from comparing.report.markdown import counted, table
from comparing.systems import FULL


def main_part(record: RunRecord) -> Iterator[str]:
    """Show every point of the main part, and the plot."""
    for point in points(record.seen.plays):
        if point[0] == MAIN_PART:
            yield f"## {point[1]}, {point[2]}"
            yield ""
            yield from systems_table(record, point)
    if any(point[0] == MAIN_PART for point in points(record.seen.plays)):
        yield "![TTFT against request rate](ttft.png)"
        yield ""


def throughputs(record: RunRecord) -> Iterator[str]:
    """Show up to which rate each system keeps its TTFT low, on every main trace."""
    plays = record.seen.plays
    for trace in main_traces(plays):
        keys = dict.fromkeys(
            play.system for play in plays if (play.part, play.trace) == (MAIN_PART, trace)
        )
        lines = {key: curve(plays, MAIN_PART, trace, key) for key in keys}
        if any(len(line) < 2 for line in lines.values()):
            continue
        loads = [point for point in points(plays) if point[:2] == (MAIN_PART, trace)]
        most = {
            key: max(system_figures(plays_at(plays, load)[key]).completed for load in loads)
            for key in keys
        }
        yield f"## Throughput: {trace}"
        yield ""
        yield (
            "The rate at which the mean TTFT is five times that of the lowest rate (the paper: up to "
            "2.1 times vLLM's, 1.8 times SGLang's), and what the system completed a second where it "
            "completed most. A play here is short, so that a slow system's long TTFT allows it a longer "
            "queue: the first figure favours it, the second does not."
        )
        yield ""
        yield from table(
            ("system", "requests a second at five times the TTFT", "completed a second at most"),
            (
                (record.name_of(key), str(throughput(line)), f"{most[key]:.2f}")
                for key, line in lines.items()
            ),
        )


def sweeps(record: RunRecord) -> Iterator[str]:
    """Show the other traces."""
    wanted = [point for point in points(record.seen.plays) if point[0] == "sweep"]
    if wanted:
        yield "## Other traces"
        yield ""
    for point in wanted:
        yield f"### {point[1]}, {point[2]}"
        yield ""
        yield from systems_table(record, point)


def ablations(record: RunRecord) -> Iterator[str]:
    """Show RAGCache with one part changed at a time."""
    wanted = [point for point in points(record.seen.plays) if point[0].startswith(ABLATION)]
    if wanted:
        yield "## RAGCache with one part changed"
        yield ""
        yield "The paper: reordering lowers the TTFT 1.2 to 2.1 times when saturated."
        yield ""
        yield from _same_twice(record, wanted)
    for point in wanted:
        yield f"{point[1]}, {point[2]}."
        yield ""
        yield from systems_table(record, point)
        found = plays_at(record.seen.plays, point)
        if {FULL.key, "policy-lru"} <= found.keys():
            ours, lru = (sum(system_figures(found[key]).cached) for key in (FULL.key, "policy-lru"))
            if lru:
                yield f"Hit rate over LRU: {ours / lru:.2f} times (the paper: 1.06 to 1.62)."
                yield ""


def _same_twice(record: RunRecord, wanted: Sequence[Point]) -> Iterator[str]:
    """Show how much two starts of the same system differ, which no range within one start shows."""
    starts = [
        found[FULL.key]
        for point in wanted
        if FULL.key in (found := plays_at(record.seen.plays, point))
    ]
    if len(starts) > 1:
        means = [system_figures(plays).ttft_median_of_rounds for plays in starts]
        yield (
            f"{FULL.name} itself, started {len(means)} times and asked the same: TTFT "
            f"{' and '.join(f'{mean:.3f}' for mean in means)} s. Smaller differences are noise."
        )
        yield ""


def systems_table(record: RunRecord, point: Point) -> Iterator[str]:
    """Show all systems at one point, with each baseline's TTFT over RAGCache's."""
    found = plays_at(record.seen.plays, point)
    made = {key: system_figures(plays) for key, plays in found.items()}
    ours = FULL.key if FULL.key in found else next(iter(found))
    one = next(iter(made.values()))
    borrows = any(record.systems[key].is_approximate for key in found)
    if one.rate:
        starts = len({play.start for play in found[ours]})
        of_starts = f" of {starts} starts" if starts > 1 else ""
        yield (
            f"{one.rate:.2f} requests a second, {one.requests} requests in "
            f"{counted(len(one.ttft_rounds), 'round')}{of_starts}."
        )
        yield ""
    yield from table(
        (
            "system",
            "TTFT mean, s: median of rounds (least to most)",
            "p50",
            "p99",
            "its TTFT over RAGCache's",
            "TBT, ms",
            "from device / host / disk",
            *(["borrowed"] if borrows else []),
            "computed tokens",
            "completed a second",
            "processor s",
        ),
        (
            (
                record.name_of(key),
                _spread(row),
                f"{row.ttft_p50:.3f}",
                f"{row.ttft_p99:.3f}",
                "" if key == ours else str(ttft_ratio(found[key], found[ours])),
                f"{1e3 * row.tbt:.0f}" if row.tbt is not None else "",
                _tiers(key, row),
                *([f"{row.borrowed:.0%}"] if borrows else []),
                f"{row.computed_tokens:.0f}",
                f"{row.completed:.2f}",
                f"{row.cpu_s:.2f}",
            )
            for key, row in made.items()
        ),
    )


def _spread(row: SystemFigures) -> str:
    least, most = min(row.ttft_rounds), max(row.ttft_rounds)
    return f"{row.ttft_median_of_rounds:.3f} ({least:.3f} to {most:.3f})"


def _tiers(key: str, row: SystemFigures) -> str:
    device, host, disk = row.cached
    if key in ("lru", "arc"):
        return f"{device:.0%} (device and host)"
    return f"{device:.0%} / {host:.0%} / {disk:.0%}"
