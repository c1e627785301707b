"""report.md: what was measured, what it amounts to, and what was not better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragcache_cli.bench.corpora import About
from ragcache_cli.bench.drive import Seen
from ragcache_cli.bench.figures import (
    Differing,
    Figures,
    Point,
    at,
    curve,
    differing,
    disturbance,
    figures,
    points,
    throughput,
    ttft_ratio,
)
from ragcache_cli.bench.goals import MAIN_PART, Compared, Verdict, compared, main_traces, verdicts
from ragcache_cli.bench.growth import Growth
from ragcache_cli.bench.overlap import Overlap
from ragcache_cli.bench.plan import ABLATION
from ragcache_cli.bench.quality import Graded
from ragcache_cli.bench.systems import FULL, SYSTEMS, Sizes

MIB = 1 << 20
QUIET_CORES = 0.1
"""What other programs may take of a core before a run's times are no longer trusted."""
PAPER_TTFT = "up to 4 times lower than vLLM with Faiss, up to 3.5 than SGLang"


@dataclass(slots=True)
class Report:
    """All of a run. command: runs it again. left_out: what this plan does not measure.

    equal: answers that differ in float32, by system. quality: by system, on the same questions.
    """

    title: str
    command: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    sizes: Sizes
    token_bytes: int | None
    seen: Seen
    abouts: Sequence[About]
    seconds: float = 0.0
    left_out: Sequence[str] = ()
    quality: Mapping[str, Graded] = field(default_factory=dict)
    float32: Sequence[Differing] = ()
    overlap: Overlap | None = None
    growth: Growth | None = None
    load_average: tuple[float, float, float] = (0.0, 0.0, 0.0)


def written(report: Report) -> str:
    """The whole report as Markdown."""
    sections = (
        _head(report),
        _goals(report),
        _not_better(report),
        _main(report),
        _throughput(report),
        _sweeps(report),
        _ablations(report),
        _answers(report),
        _overlap(report),
        _costs(report),
        _growth(report),
        _traces(report),
        _method(report),
    )
    return "\n".join(line for section in sections for line in section) + "\n"


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    memory = machine.get("memory_bytes") or 0
    gpus = ", ".join(gpu["name"] for gpu in machine.get("gpus", ())) or "no GPU"
    versions = ", ".join(f"{name} {value}" for name, value in report.versions.items() if value)
    yield f"# {report.title}"
    yield ""
    yield (
        f"Machine: {machine.get('cpu') or machine.get('system')}, {machine.get('cores')} cores, "
        f"{memory / 2**30:.0f} GiB, {gpus}; load average before the run "
        f"{report.load_average[0]:.1f}. {report.seconds / 60:.0f} minutes. Again: `{report.command}`."
    )
    yield ""
    if _is_disturbed(report):
        cores = disturbance(report.seen.plays)
        yield (
            f"**This run was disturbed: other programs took up to {cores:.2f} of a core while a system "
            "was asked. Its times, and what follows from them, decide nothing; repeat it on a quiet "
            "machine.**"
        )
        yield ""
    yield f"Model: {report.sizes.model}, {report.sizes.dtype}. {versions}."
    yield ""


def _goals(report: Report) -> Iterator[str]:
    found = verdicts(report.seen.plays)
    if not found:
        return
    yield "## Goals"
    yield ""
    yield from _table(
        (
            "goal",
            "trace",
            "",
            "measured: the baseline's TTFT over RAGCache's (90% of resamplings)",
        ),
        ((one.goal, one.trace or "all", _decided(report, one), one.found) for one in found),
    )
    yield f"The paper: TTFT {PAPER_TTFT}; throughput up to 2.1 and 1.8 times."
    yield 'As these say "up to", the best rate decides here too; the worst one stands beside it.'
    yield ""


def _is_disturbed(report: Report) -> bool:
    return disturbance(report.seen.plays) > QUIET_CORES


def _decided(report: Report, one: Verdict) -> str:
    if one.is_met is None or _is_disturbed(report):
        return "not decided"
    return "met" if one.is_met else "**missed**"


def _not_better(report: Report) -> Iterator[str]:
    seen = compared(report.seen.plays)
    if not seen:
        return
    worse = [one for one in seen if one.is_worse]
    even = [one for one in seen if not one.is_worse and not one.is_better]
    yield "## What was not better"
    yield ""
    if worse:
        yield "Worse by more than the noise:"
        yield ""
        yield from (_told(one) for one in worse)
        yield ""
        yield (
            f"A range leaves out 5% at its lower end: among {len(seen)} comparisons of equals, about "
            f"{len(seen) * 0.05:.1f} would stand here by chance."
        )
        yield ""
    else:
        yield "Nothing was worse than a baseline by more than the noise."
        yield ""
    if even:
        yield "No better, within the noise:"
        yield ""
        yield from (_told(one) for one in even)
        yield ""


def _told(one: Compared) -> str:
    part, trace, load = one.point
    return f"- {part}: {trace}, {load}, against {SYSTEMS[one.baseline].name}: {one.ratio}"


def _main(report: Report) -> Iterator[str]:
    for point in points(report.seen.plays):
        if point[0] == MAIN_PART:
            yield f"## {point[1]}, {point[2]}"
            yield ""
            yield from _systems(report, point)
    if any(point[0] == MAIN_PART for point in points(report.seen.plays)):
        yield "![TTFT against request rate](ttft.png)"
        yield ""


def _systems(report: Report, point: Point) -> Iterator[str]:
    found = at(report.seen.plays, point)
    made = {key: figures(plays) for key, plays in found.items()}
    ours = FULL.key if FULL.key in found else next(iter(found))
    one = next(iter(made.values()))
    if one.rate:
        starts = len({play.start for play in found[ours]})
        of_starts = f" of {starts} starts" if starts > 1 else ""
        yield (
            f"{one.rate:.2f} requests a second, {one.requests} requests in "
            f"{_counted(len(one.ttft_rounds), 'round')}{of_starts}."
        )
        yield ""
    yield from _table(
        (
            "system",
            "TTFT mean, s: median of rounds (least to most)",
            "p50",
            "p99",
            "its TTFT over RAGCache's",
            "TBT, ms",
            "from device / host / disk",
            "computed tokens",
            "completed a second",
            "processor s",
        ),
        (
            (
                SYSTEMS[key].name,
                _spread(row),
                f"{row.ttft_p50:.3f}",
                f"{row.ttft_p99:.3f}",
                "" if key == ours else str(ttft_ratio(found[key], found[ours])),
                f"{1e3 * row.tbt:.0f}" if row.tbt is not None else "",
                _tiers(key, row),
                f"{row.computed_tokens:.0f}",
                f"{row.completed:.2f}",
                f"{row.cpu_s:.2f}",
            )
            for key, row in made.items()
        ),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _spread(row: Figures) -> str:
    least, most = min(row.ttft_rounds), max(row.ttft_rounds)
    return f"{row.ttft_median_of_rounds:.3f} ({least:.3f} to {most:.3f})"


def _tiers(key: str, row: Figures) -> str:
    device, host, disk = row.cached
    if key in ("lru", "arc"):
        return f"{device:.0%} (device and host)"
    return f"{device:.0%} / {host:.0%} / {disk:.0%}"


def _throughput(report: Report) -> Iterator[str]:
    plays = report.seen.plays
    for trace in main_traces(plays):
        keys = dict.fromkeys(
            play.system for play in plays if (play.part, play.trace) == (MAIN_PART, trace)
        )
        lines = {key: curve(plays, MAIN_PART, trace, key) for key in keys}
        if any(len(line) < 2 for line in lines.values()):
            continue
        loads = [point for point in points(plays) if point[:2] == (MAIN_PART, trace)]
        most = {key: max(figures(at(plays, load)[key]).completed for load in loads) for key in keys}
        yield f"## Throughput: {trace}"
        yield ""
        yield (
            "The rate at which the mean TTFT is five times that of the lowest rate (the paper: up to "
            "2.1 times vLLM's, 1.8 times SGLang's), and what the system completed a second where it "
            "completed most. A play here is short, so that a slow system's long TTFT allows it a longer "
            "queue: the first figure favours it, the second does not."
        )
        yield ""
        yield from _table(
            ("system", "requests a second at five times the TTFT", "completed a second at most"),
            (
                (SYSTEMS[key].name, str(throughput(line)), f"{most[key]:.2f}")
                for key, line in lines.items()
            ),
        )


def _sweeps(report: Report) -> Iterator[str]:
    wanted = [point for point in points(report.seen.plays) if point[0] == "sweep"]
    if wanted:
        yield "## Other traces"
        yield ""
    for point in wanted:
        yield f"### {point[1]}, {point[2]}"
        yield ""
        yield from _systems(report, point)


def _ablations(report: Report) -> Iterator[str]:
    wanted = [point for point in points(report.seen.plays) if point[0].startswith(ABLATION)]
    if wanted:
        yield "## RAGCache with one part changed"
        yield ""
        yield "The paper: reordering lowers the TTFT 1.2 to 2.1 times when saturated."
        yield ""
        yield from _same_twice(report, wanted)
    for point in wanted:
        yield f"{point[1]}, {point[2]}."
        yield ""
        yield from _systems(report, point)
        found = at(report.seen.plays, point)
        if {FULL.key, "policy-lru"} <= found.keys():
            ours, lru = (sum(figures(found[key]).cached) for key in (FULL.key, "policy-lru"))
            if lru:
                yield f"Hit rate over LRU: {ours / lru:.2f} times (the paper: 1.06 to 1.62)."
                yield ""


def _same_twice(report: Report, wanted: Sequence[Point]) -> Iterator[str]:
    """What starting a system anew changes, which no range within one start can show."""
    starts = [
        found[FULL.key] for point in wanted if FULL.key in (found := at(report.seen.plays, point))
    ]
    if len(starts) > 1:
        means = [figures(plays).ttft_median_of_rounds for plays in starts]
        yield (
            f"{FULL.name} itself, started {len(means)} times and asked the same: TTFT "
            f"{' and '.join(f'{mean:.3f}' for mean in means)} s. Smaller differences are noise."
        )
        yield ""


def _answers(report: Report) -> Iterator[str]:
    counts = differing(report.seen.plays)
    if not counts and not report.quality and not report.float32:
        return
    yield "## Answers"
    yield ""
    if report.float32:
        yield "In float32, greedy, answers that are not the same to the character:"
        yield ""
        yield from _table(
            ("systems", "differing"),
            map(_differing, report.float32),
        )
    if counts:
        yield (
            f"In the plays above ({report.sizes.dtype}), where vLLM differs from itself once prompts are "
            "batched or cut otherwise:"
        )
        yield ""
        yield from _table(
            ("systems", "differing"),
            map(_differing, counts),
        )
    if report.quality:
        yield "Quality, for each setting that changes the prompt, beside the one that does not:"
        yield ""
        yield from _table(
            (
                "system",
                "questions",
                "exact match",
                "answer contained",
                "ROUGE-L",
                "cached",
                "TTFT, s",
            ),
            (
                (
                    SYSTEMS[key].name,
                    str(row.quality.questions),
                    f"{row.quality.exact:.1%}",
                    f"{row.quality.contained:.1%}",
                    f"{row.quality.rouge_l:.3f}",
                    f"{row.cached:.0%}",
                    f"{row.ttft_s:.3f}",
                )
                for key, row in report.quality.items()
            ),
        )


def _differing(one: Differing) -> tuple[str, str]:
    names = f"{SYSTEMS[one.left].name} / {SYSTEMS[one.right].name}"
    return names, f"{one.differing} of {one.asked}"


def _overlap(report: Report) -> Iterator[str]:
    if not (found := report.overlap):
        return
    yield "## Search hidden by prefill"
    yield ""
    yield (
        f"{found.questions} questions, one at a time, on an index of {found.vectors:,} vectors: the "
        f"search takes {found.search_s:.3f} s in the median. {found.hidden:.0%} of it (quartiles "
        f"{found.low:.0%} to {found.high:.0%}; the paper: 76.9%) ran beside the prefill of the documents "
        f"it ended with. TTFT {found.plain_ttft_s:.3f} s without speculation, "
        f"{found.staged_ttft_s:.3f} s with; pair by pair {1e3 * found.gain_s:+.0f} ms saved (quartiles "
        f"{1e3 * found.gain_low_s:+.0f} to {1e3 * found.gain_high_s:+.0f}). Outcomes: "
        + ", ".join(f"{name} {count}" for name, count in found.outcomes.items())
        + "."
    )
    yield ""


def _costs(report: Report) -> Iterator[str]:
    if not report.seen.told:
        return
    yield "## Memory, disk, scheduling"
    yield ""
    rows = []
    for told in report.seen.told:
        scheduled = told.get("scheduled") or 0
        rows.append(
            (
                SYSTEMS[told["system"]].name,
                told["part"],
                str(told["start"] + 1),
                f"{told['memory_bytes'] / MIB:,.0f}",
                f"{told['disk_bytes'] / MIB:,.0f}",
                f"{1e3 * told['scheduling_s'] / scheduled:.2f}" if scheduled else "",
            )
        )
    yield from _table(
        ("system", "part", "start", "memory, MiB", "disk, MiB", "our scheduling, ms a request"),
        rows,
    )
    idle = [figures(plays).idle_cpu for point in points(report.seen.plays)
            for plays in at(report.seen.plays, point).values()]  # fmt: skip
    yield (
        f"The paper: 0.9 ms of scheduling a request. While one system was asked, the other systems "
        f"together took {max(idle):.3f} of a core at most."
    )
    yield ""


def _growth(report: Report) -> Iterator[str]:
    if not (growth := report.growth):
        return
    yield "## Growth"
    yield ""
    if growth.tree:
        yield "The knowledge tree, full, one request (match, use, admit and the evictions they cause):"
        yield ""
        yield from _table(
            ("nodes", "median, µs", "p99, µs"),
            (
                (f"{one.nodes:,}", f"{one.median_us:.0f}", f"{one.p99_us:.0f}")
                for one in growth.tree
            ),
        )
    if growth.search:
        yield "Search, IVF of sqrt(n) lists, an eighth of them probed, top-2, one thread:"
        yield ""
        yield from _table(
            ("vectors", "whole, ms", "in stages, ms"),
            (
                (f"{one.vectors:,}", f"{one.whole_ms:.2f}", f"{one.staged_ms:.2f}")
                for one in growth.search
            ),
        )
    if growth.flight:
        yield "The engine around a model that computes nothing, by requests in flight:"
        yield ""
        yield from _table(
            ("in flight", "ms of processor a request"),
            ((str(one.in_flight), f"{one.request_ms:.2f}") for one in growth.flight),
        )


def _traces(report: Report) -> Iterator[str]:
    yield "## Traces"
    yield ""
    for about in report.abouts:
        size = (
            f"{about.live_tokens * report.token_bytes / MIB:,.0f} MiB of key-value tensors"
            if report.token_bytes
            else f"{about.live_tokens:,} tokens"
        )
        count = about.left_out
        left = f" {count} questions were left out, as their prompts do not fit." if count else ""
        yield (
            f"- **{about.trace}**: {about.skew}. Prompts of {about.prompt_tokens:.0f} tokens, answers "
            f"of {about.answer_tokens:.1f} (as long as the accepted ones); all it asks for takes "
            f"{size}.{left}"
        )
    yield ""


def _method(report: Report) -> Iterator[str]:
    sizes = report.sizes
    yield "## How it was measured"
    yield ""
    yield (
        f"Every system is a process of its own with the same LangChain chain on the same Faiss index, "
        f"the same prompts, model and arguments (blocks of 32 tokens on a CPU, at most "
        f"{sizes.at_once} requests computed together, context {sizes.context_tokens}), "
        f"{sizes.device_bytes / MIB:.0f} MiB of device cache and, those that have one, "
        f"{sizes.host_bytes / MIB:.0f} MiB of host cache. All of a group are up at the same time; a "
        "play goes to one after the other, in another order each round, with the same questions at the "
        "same times. Stock vLLM is its asynchronous engine behind LangChain's own FAISS retriever and a "
        "client without a line of RAGCache. On the CPU platform vLLM's own host offload refuses to "
        "run; there its manager and policies are used with our copying worker."
    )
    yield ""
    yield (
        "TTFT counts from the moment a question arrives, search and queueing included, to the first "
        "piece out of the chain. Questions' vectors are made beforehand. Caches are filled by earlier "
        "requests of the trace first, with answers of one token; what is counted comes after. Capacity "
        "is what vLLM without a cache completes in a second, one at a time; arrivals are Poisson. Above "
        "its capacity a system's TTFT grows with the length of the play, so that ratios there say that "
        "it is saturated, not by how much. A ratio is the median of the rounds; its range resamples "
        "starts, rounds within each, and requests within those, each with its counterpart."
    )
    yield ""
    if report.left_out:
        yield "Left out:"
        yield ""
        yield from (f"- {line}" for line in report.left_out)
        yield ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
