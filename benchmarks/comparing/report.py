"""Writes report.md: what was not better, a table for each point, answers, memory, and the method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import table

from comparing.figures import (
    Differing,
    Point,
    SystemFigures,
    compare_all,
    differing_answers,
    disturbance,
    plays_at,
    points,
    system_figures,
    ttft_ratio,
)
from comparing.plan import ABLATION, ANYWHERE_PART, MAIN_PART, WARMED_PART
from comparing.plots import draw
from comparing.record import RunRecord
from comparing.systems import FULL, OFF, ON, SYSTEMS

REPORT = "report.md"
MIB = 1 << 20
QUIET_CORES = 0.1
"""The share of a core that other programs may take before a run's times cannot be trusted."""


def write_report(out: Path, record: RunRecord) -> None:
    """Write the plot and report.md."""
    draw(record.seen.plays, out / "ttft.png")
    (out / REPORT).write_text(compose_report(record), encoding="utf-8")


def compose_report(record: RunRecord) -> str:
    """Return the report as Markdown."""
    sections = (head, not_better, all_points, closeness, answers, costs, traces, method)
    return "\n".join(line for section in sections for line in section(record)) + "\n"


def head(record: RunRecord) -> Iterator[str]:
    """Say what ran where, with which versions, and whether other programs disturbed it."""
    machine = record.machine
    memory = machine.get("memory_bytes") or 0
    gpus = ", ".join(gpu["name"] for gpu in machine.get("gpus", ())) or "no GPU"
    versions = ", ".join(f"{name} {value}" for name, value in record.versions.items() if value)
    yield f"# {record.title}"
    yield ""
    yield (
        f"Machine: {machine.get('cpu') or machine.get('system')}, {machine.get('cores')} cores, "
        f"{memory / 2**30:.0f} GiB, {gpus}; load average before the run "
        f"{record.load_average[0]:.1f}. {record.seconds / 60:.0f} minutes. Again: `{record.command}`."
    )
    yield ""
    cores = disturbance(record.seen.plays)
    if cores > QUIET_CORES:
        yield (
            f"**This run was disturbed: other programs took up to {cores:.2f} of a core while a system "
            "was asked. Its times, and what follows from them, decide nothing; repeat it on a quiet "
            "machine.**"
        )
        yield ""
    yield f"Model: {record.sizes.model}, {record.sizes.dtype}. {versions}."
    yield ""


def not_better(record: RunRecord) -> Iterator[str]:
    """List every comparison in which RAGCache was worse, or no better."""
    seen = compare_all(record.seen.plays)
    if not seen:
        return
    yield "## What was not better"
    yield ""
    yield (
        f"Of {len(seen)} comparisons. A range leaves out 5% at its lower end: among equals, about "
        f"{len(seen) * 0.05:.1f} would be worse by chance."
    )
    yield ""
    for (part, trace, load), baseline, ratio in sorted(seen, key=lambda one: not one[2].is_worse):
        if not ratio.is_better:
            said = "**worse by more than the noise**" if ratio.is_worse else "no better"
            yield f"- {part}: {trace}, {load}, against {name_of(baseline)}: {said}, {ratio}"
    yield ""


def all_points(record: RunRecord) -> Iterator[str]:
    """Show all systems at every point, and what warming took."""
    found = points(record.seen.plays)
    starts = {
        f"{system_figures(plays_at(record.seen.plays, one)[FULL.key]).ttft:.3f}": one
        for one in found
        if one[0].startswith(ABLATION) and FULL.key in plays_at(record.seen.plays, one)
    }
    if len(starts) > 1:
        yield (
            f"RAGCache itself, started {len(starts)} times and asked the same: TTFT "
            f"{' and '.join(starts)} s. Smaller differences are noise."
        )
        yield ""
    for point in found:
        yield f"## {': '.join(point[:2])}, {point[2]}"
        yield ""
        yield from _of_rounds(record, point)
        yield from systems_table(record, point)
    if any(point[0] == MAIN_PART for point in found):
        yield "![TTFT against request rate](ttft.png)"
        yield ""
    if record.seen.warmed:
        yield "## Warming"
        yield ""
        yield (
            "Where documents are warmed, RAGCache's systems prefilled all documents that the questions "
            "find, as a user does while indexing; exact ones as the first document of a prompt, "
            "approximate ones also behind their nearest neighbour."
        )
        yield ""
        yield from table(
            ("trace", "system", "documents warmed", "seconds", "tokens of the prompts", "computed"),
            (
                (
                    one.trace,
                    name_of(one.system),
                    str(one.documents),
                    f"{one.seconds:.1f}",
                    f"{one.prompt_tokens:,}",
                    f"{one.computed_tokens:,}",
                )
                for one in record.seen.warmed
            ),
        )


def _of_rounds(record: RunRecord, point: Point) -> Iterator[str]:
    plays = next(iter(plays_at(record.seen.plays, point).values()))
    one, starts = system_figures(plays), len({play.start for play in plays})
    rate = f"{one.rate:.2f} requests a second, " if one.rate else ""
    yield f"{rate}{one.requests} requests, rounds: {len(one.ttft_rounds)}, starts: {starts}."
    yield ""


def systems_table(record: RunRecord, point: Point) -> Iterator[str]:
    """Show all systems at one point, with each baseline's TTFT over RAGCache's.

    With reuse at any position, vLLM's TTFT stands over that of each system instead.
    """
    found = plays_at(record.seen.plays, point)
    made = {key: system_figures(plays) for key, plays in found.items()}
    is_anywhere = point[0] in (ANYWHERE_PART, WARMED_PART)
    against = (ON if is_anywhere else FULL).key
    against = against if against in found else next(iter(found))

    def ratio(key: str) -> str:
        if key == against:
            return ""
        pair = (found[against], found[key]) if is_anywhere else (found[key], found[against])
        return str(ttft_ratio(*pair))

    of_borrowing = ("borrowed", "computed anew of borrowed documents") if is_anywhere else ()
    yield from table(
        (
            "system",
            "TTFT mean, s: median of rounds (least to most)",
            "p50",
            "p99",
            f"{name_of(against)}'s TTFT over its" if is_anywhere else "its TTFT over RAGCache's",
            "TBT, ms",
            "exact, from device / host / disk",
            *of_borrowing,
            "computed tokens",
            "completed a second",
            "processor s",
        ),
        (
            (
                name_of(key),
                f"{row.ttft:.3f} ({min(row.ttft_rounds):.3f} to {max(row.ttft_rounds):.3f})",
                f"{row.ttft_p50:.3f}",
                f"{row.ttft_p99:.3f}",
                ratio(key),
                f"{1e3 * row.tbt:.0f}" if row.tbt is not None else "",
                _tiers(key, row),
                *((f"{row.borrowed:.0%}", f"{row.recomputed:.0%}") if is_anywhere else ()),
                f"{row.computed_tokens:.0f}",
                f"{row.completed:.2f}",
                f"{row.cpu_s:.2f}",
            )
            for key, row in made.items()
        ),
    )


def _tiers(key: str, row: SystemFigures) -> str:
    device, host, disk = row.cached
    if key in ("lru", "arc"):
        return f"{device:.0%} (device and host)"
    return f"{device:.0%} / {host:.0%} / {disk:.0%}"


def closeness(record: RunRecord) -> Iterator[str]:
    """Show how close approximate answers are to those of vLLM in full."""
    for of, seen in record.closeness.items():
        if not seen:
            continue
        asked = next(iter(seen.values())).asked
        yield f"## Likeness of answers: {of}"
        yield ""
        yield (
            f"Answers of the model's own length to {asked} questions, compared with those of {OFF.name} "
            f"({record.sizes.dtype}). Exact reuse never changes an answer: an exact system that differs "
            "shows how much vLLM differs from itself when it batches otherwise."
        )
        yield ""
        yield from table(
            ("system", "answers", "ROUGE-L", "equal answers", "accepted answer contained"),
            (
                (
                    name_of(key),
                    "approximate" if SYSTEMS[key].is_approximate else "exact",
                    f"{row.rouge_l:.3f}",
                    f"{row.equal} of {row.asked}",
                    "" if row.contained is None else f"{row.contained:.1%}",
                )
                for key, row in seen.items()
            ),
        )


def answers(record: RunRecord) -> Iterator[str]:
    """Count differing answers: those asked in float32, and those of the plays."""
    counts: dict[str, list[Differing]] = {
        "float32": list(record.float32),
        f"{record.sizes.dtype}, where vLLM differs from itself once prompts are batched otherwise": (
            differing_answers(record.seen.plays)
        ),
    }
    if not any(counts.values()):
        return
    yield "## Answers of exact systems that are not the same to the character"
    yield ""
    yield from table(
        ("dtype", "systems", "differing"),
        (
            (
                dtype,
                f"{name_of(one.left)} / {name_of(one.right)}",
                f"{one.differing} of {one.asked}",
            )
            for dtype, found in counts.items()
            for one in found
        ),
    )


def costs(record: RunRecord) -> Iterator[str]:
    """Show memory, disk and scheduling of every system in every start."""
    if not record.seen.told:
        return
    yield "## Memory, disk, scheduling"
    yield ""
    yield from table(
        ("system", "part", "start", "memory, MiB", "disk, MiB", "our scheduling, ms a request"),
        (
            (
                name_of(told["system"]),
                told["part"],
                str(told["start"] + 1),
                f"{told['memory_bytes'] / MIB:,.0f}",
                f"{told['disk_bytes'] / MIB:,.0f}",
                f"{1e3 * told['scheduling_s'] / told['scheduled']:.2f}"
                if told.get("scheduled")
                else "",
            )
            for told in record.seen.told
        ),
    )
    plays = record.seen.plays
    idle = [
        system_figures(each).idle_cpu
        for point in points(plays)
        for each in plays_at(plays, point).values()
    ]
    yield (
        f"The paper: 0.9 ms of scheduling a request. While one system was asked, the other systems "
        f"together took {max(idle):.3f} of a core at most."
    )
    yield ""


def traces(record: RunRecord) -> Iterator[str]:
    """Say for every trace how skewed it is and how much memory it needs."""
    yield "## Traces"
    yield ""
    for about in record.abouts:
        size = (
            f"{about.live_tokens * record.token_bytes / MIB:,.0f} MiB of key-value tensors"
            if record.token_bytes
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


def method(record: RunRecord) -> Iterator[str]:
    """Say how the figures came about."""
    sizes = record.sizes
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
        "starts, rounds within each, and requests within those, each with its counterpart. Tokens are "
        "exact if found behind the same tokens, borrowed if found in another context; all others are "
        "computed."
    )
    yield ""


def name_of(key: str) -> str:
    return SYSTEMS[key].name
