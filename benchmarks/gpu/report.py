"""Writes what a run has found as Markdown, with a picture."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tables import table

from gpu.run import Row
from ragcache_cli.extras import needed

SYSTEMS = {
    "ragcache": "RAGCache",
    "prefix": "vLLM's prefix cache",
    "lru": "vLLM's host offload, LRU",
    "arc": "vLLM's host offload, ARC",
}
PLACES = {
    "vLLM, computed": "#bdc1c6",
    "vLLM, device": "#8ab4f8",
    "computed": "#5f6368",
    "device": "#1a73e8",
    "host": "#12a182",
    "disk": "#e8710a",
    "borrowed, 0.15": "#f29900",
    "borrowed, 0": "#d93025",
}
"""Where most of a prompt's tokens came from, each place with its colour in the picture."""


def write_report(rows: Sequence[Row], out: Path) -> Path:
    """Write report.md and, where there are times, ttft.png; return the report. Raises MissingExtra."""
    has_picture = draw(rows, out)
    lines = [
        f"# RAGCache on {device(rows)}",
        "",
        *(["A small try on a CPU, whose times mean nothing.", ""] if device(rows) == "CPU" else []),
        *machine(rows),
        *started(rows),
        *(
            ["![TTFT by where the prompt's tokens came from, and under load](ttft.png)", ""]
            if has_picture
            else []
        ),
        *times(rows),
        *answers(rows),
        *streams(rows),
        *failures(rows),
        f"The raw figures are in `{out.name}/results.jsonl`, what each part said in `{out.name}/logs`.",
    ]
    file = out / "report.md"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


def device(rows: Sequence[Row]) -> str:
    """Return the name of the device that was measured."""
    return next((str(row["device"]) for row in of(rows, "machine")), "this device")


def machine(rows: Sequence[Row]) -> Iterator[str]:
    for row in of(rows, "machine"):
        facts = {key: value for key, value in row.items() if key not in ("what", "part")}
        yield from table(["machine", ""], [[key, str(value)] for key, value in facts.items()])


def started(rows: Sequence[Row]) -> Iterator[str]:
    found = of(rows, "started")
    yield "## Does it start, and with what?"
    yield ""
    if not found:
        yield "No: nothing started. What failed is below."
        yield ""
        return
    known = ("what", "part", "system", "seconds")
    yield from table(
        ["system", "s to start", "with"],
        [
            [
                row["system"],
                str(row["seconds"]),
                ", ".join(
                    f"{k}: {v}" for k, v in row.items() if k not in known and v not in (None, {})
                ),
            ]
            for row in found
        ],
    )


def ttft_by_place(rows: Sequence[Row]) -> dict[tuple[int, str], list[Row]]:
    """Return the measured prompts by their length in words and where most of their tokens came from."""
    found: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in of(rows, "ttft"):
        found[row["length"], row["place"]].append(row)
    return found


def times(rows: Sequence[Row]) -> Iterator[str]:
    found = ttft_by_place(rows)
    if not found:
        return
    yield "## TTFT, by where the prompt's tokens came from"
    yield ""
    yield (
        "Seconds, median (lowest to highest), of one request at a time. GB/s: the bytes that were "
        "loaded, by what they took longer than the same prompt from the device."
    )
    yield ""
    lengths = sorted({length for length, _ in found})
    places = [place for place in PLACES if any(place == other for _, other in found)]
    cells = []
    for length in lengths:
        prompt = statistics.fmean(
            row["prompt_tokens"]
            for (of_length, _), some in found.items()
            if of_length == length
            for row in some
        )
        cells.append([f"{prompt:,.0f}", *(cell(found, length, place) for place in places)])
    yield from table(["tokens", *places], cells)


def cell(found: dict[tuple[int, str], list[Row]], length: int, place: str) -> str:
    some = found.get((length, place))
    if not some:
        return "-"
    seconds = [row["ttft_s"] for row in some]
    text = f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
    held = found.get((length, "device"))
    if place in ("host", "disk") and held:
        extra = statistics.median(seconds) - statistics.median(row["ttft_s"] for row in held)
        if extra > 0:
            loaded = statistics.median(row["bytes"] for row in some)
            text += f", {loaded / extra / 1e9:.2f} GB/s"
    return text


def answers(rows: Sequence[Row]) -> Iterator[str]:
    by_dtype: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in of(rows, "answers"):
        by_dtype[row["dtype"]][row["system"]] = row
    if by_dtype:
        yield "## Are the answers equal?"
        yield ""
        yield (
            "Answers that differ from those of vLLM without a cache. Rounding turns near ties, in vLLM's "
            "prefix cache too: compare with that, pass by pass. Margin: by how much vLLM liked its token "
            "better than the next best one where an answer turned, in log-probability, at most; a cache "
            "that returned wrong keys and values would turn answers at any margin."
        )
        yield ""
        yield from table(
            ["numbers", "system", "differ", "margin", "tokens from device, host, disk"],
            [
                [dtype, system, *different(row, by_system), shares(row)]
                for dtype, by_system in by_dtype.items()
                for system, row in by_system.items()
            ],
        )
    likeness = of(rows, "likeness")
    if likeness:
        yield "Borrowed documents, against exact answers of this engine. At ratio 1 all must be equal."
        yield ""
        yield from table(
            ["ratio", "equal", "ROUGE-L", "tokens borrowed", "computed anew"],
            [
                [
                    f"{row['ratio']:g}",
                    f"{row['equal']} of {row['n']}",
                    f"{row['rouge_l']:.2f}",
                    f"{row['borrowed']:,}",
                    f"{row['recomputed']:,}",
                ]
                for row in likeness
            ],
        )


def different(row: Row, by_system: dict[str, Row]) -> tuple[str, str]:
    """Return how many answers differ from vLLM's, and the largest margin at which one turned."""
    reference = by_system.get("vLLM")
    if reference is None:
        return "vLLM did not answer", ""
    pairs = list(zip(row["tokens"], reference["tokens"], strict=False))
    turned = {
        number: next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        for number, (one, other) in enumerate(pairs)
        if one != other
    }
    margins, text = reference.get("margins"), ""
    if margins and row is reference:
        text = f"median {statistics.median(each for some in margins for each in some):.2f}"
    elif margins and turned:
        text = f"{max(margins[number][at] for number, at in turned.items()):.2f}"
    return f"{len(turned)} of {len(pairs)}", text


def shares(row: Row) -> str:
    return ", ".join(f"{row[tier]:.0%}" for tier in ("device", "host", "disk"))


def streams(rows: Sequence[Row]) -> Iterator[str]:
    found = of(rows, "stream")
    if not found:
        return
    yield "## A Zipf stream, against what else there is"
    yield ""
    yield (
        "Requests of three documents, drawn with Zipf weights, at a share of the rate that prefilling "
        "all of them would allow; device and host have the same bytes for each system."
    )
    yield ""
    yield from table(
        ["load", "system", "requests/s", "answered", "TTFT mean", "p50", "p99", "tokens cached"],
        [
            [
                f"{row['load']:g}",
                SYSTEMS[row["system"]],
                f"{row['rate']:g}",
                f"{len(row['ttft_s'])} of {len(row['ttft_s']) + row['unfinished']}",
                *(f"{value:.3f} s" for value in summary(row["ttft_s"])),
                f"{row['hit_share']:.0%}",
            ]
            for row in sorted(found, key=lambda row: row["load"])
        ],
    )


def summary(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, median and 99th percentile."""
    ordered = sorted(seconds)
    return (
        statistics.fmean(ordered),
        statistics.median(ordered),
        ordered[int(0.99 * (len(ordered) - 1))],
    )


def failures(rows: Sequence[Row]) -> Iterator[str]:
    done = of(rows, "done")
    cells = [[row["name"], str(row["seconds"]), "done"] for row in done]
    for row in (*of(rows, "failed"), *of(rows, "left out")):
        said = " ".join([f"**{row['what']}**: {row['why']}", *row.get("errors", ())])
        cells.append([row["name"], str(row.get("seconds", "")), said.replace("|", "/")])
    yield "## Parts"
    yield ""
    yield from table(["part", "s", ""], cells)


def draw(rows: Sequence[Row], out: Path) -> bool:
    """Draw ttft.png: TTFT by length and place, and under load. Return whether there was anything."""
    found, under_load = ttft_by_place(rows), of(rows, "stream")
    if not found and not under_load:
        return False
    with needed("the plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_times(left, found)
    _draw_streams(right, under_load)
    figure.savefig(out / "ttft.png", dpi=90)
    return True


def _draw_times(axes: Any, found: dict[tuple[int, str], list[Row]]) -> None:
    for place, colour in PLACES.items():
        points = sorted(
            (
                statistics.fmean(row["prompt_tokens"] for row in some),
                1000 * statistics.median(row["ttft_s"] for row in some),
            )
            for (_, of_place), some in found.items()
            if of_place == place
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=place, color=colour)
    axes.set(title="One request", xlabel="prompt tokens", ylabel="TTFT, ms")
    axes.set(xlim=(0, None), ylim=(0, None))
    if found:
        axes.legend(frameon=False, fontsize=8)


def _draw_streams(axes: Any, under_load: Sequence[Row]) -> None:
    loads = sorted({row["load"] for row in under_load})
    width = 0.8 / len(SYSTEMS)
    for number, (key, name) in enumerate(SYSTEMS.items()):
        bars = [
            (at + number * width, 1000 * statistics.fmean(row["ttft_s"]))
            for at, load in enumerate(loads)
            for row in under_load
            if row["system"] == key and row["load"] == load
        ]
        if bars:
            axes.bar(*zip(*bars, strict=True), width, label=name)
    axes.set(title="A Zipf stream", xlabel="load", ylabel="mean TTFT, ms")
    axes.margins(y=0.4)  # room for the legend
    axes.set_xticks(
        [at + 0.4 - width / 2 for at in range(len(loads))], [f"{load:g}" for load in loads]
    )
    if under_load:
        axes.legend(frameon=False, fontsize=8)
