"""Draws the pictures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparing.closeness import Closeness
from comparing.comparisons import MAIN_PART, main_traces
from comparing.figures import Point, plays_at, points, system_figures
from comparing.plan import ANYWHERE_PART, ONE_BY_ONE, WARMED_PART
from comparing.plays import Play
from comparing.systems import System
from ragcache_cli.extras import needed

COLOURS = {
    "off": "#9aa0a6",
    "on": "#5f6368",
    "defaults": "#3c4043",
    "lru": "#e8710a",
    "arc": "#b06000",
    "ragcache": "#1a73e8",
    "anywhere-0": "#d93025",
    "anywhere-0.15": "#f29900",
}
OTHER = "#12a182"


def draw(plays: Sequence[Play], systems: Mapping[str, System], out: Path) -> None:
    """Draw ttft.png: mean and p99 TTFT against the request rate, a line a system and a row a trace.

    Draws only the main part, and nothing if no load has a rate. Raises MissingExtra.
    """
    traces = [trace for trace in main_traces(plays) if _points_with_rate(plays, trace)]
    if not traces:
        return
    with needed("the plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(9, 3.9 * len(traces)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(traces), 2, squeeze=False)
    for trace, (mean, tail) in zip(traces, rows, strict=True):
        _draw_trace(plays, trace, systems, mean, tail)
    lines = rows[0][0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(out / "ttft.png", dpi=90)


def draw_closeness(
    plays: Sequence[Play],
    systems: Mapping[str, System],
    closeness: Mapping[str, Closeness],
    path: Path,
) -> None:
    """Draw ROUGE-L against mean TTFT, a point a system, where documents are warmed and where not.

    Draws nothing without closeness. The TTFT is that of one question of the first trace at a time. Raises
    MissingExtra.
    """
    titles = {ANYWHERE_PART: "nothing warmed", WARMED_PART: "documents warmed"}
    shown = [one for one in points(plays) if one[0] in titles and one[2] == ONE_BY_ONE.name]
    panels = [(titles[one[0]], plays_at(plays, one)) for one in shown if one[1] == shown[0][1]]
    if not panels or not closeness:
        return
    with needed("the plots"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(4.5 * len(panels), 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, found) in zip(row, panels, strict=True):
        for key in [key for key in found if key in closeness]:
            marker = "D" if systems[key].is_approximate else "o"
            ttft_s = system_figures(found[key]).ttft_median_of_rounds
            style = {"color": COLOURS.get(key, OTHER), "marker": marker, "linestyle": "none"}
            axes.plot([ttft_s], [closeness[key].rouge_l], label=systems[key].name, **style)
        axes.set_title(f"{title}\n(diamonds: approximate)", fontsize=10)
        axes.set_xlabel("mean TTFT, seconds")
        axes.set_xlim(left=0)
        axes.grid(visible=True, color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
    row[0].set_ylabel("ROUGE-L against vLLM in full")
    lines = row[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)


def _points_with_rate(plays: Sequence[Play], trace: str) -> list[Point]:
    wanted = [point for point in points(plays) if point[:2] == (MAIN_PART, trace)]
    return [point for point in wanted if next(iter(plays_at(plays, point).values()))[0].rate]


def _draw_trace(
    plays: Sequence[Play], trace: str, systems: Mapping[str, System], mean: Any, tail: Any
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    found = [plays_at(plays, point) for point in _points_with_rate(plays, trace)]
    for key in dict.fromkeys(key for point in found for key in point):
        rows = [system_figures(point[key]) for point in found if key in point]
        rows.sort(key=lambda row: row.rate or 0.0)
        rates = [row.rate for row in rows]
        style = {"color": COLOURS.get(key, OTHER), "marker": "o", "markersize": 4}
        middle = [row.ttft_median_of_rounds for row in rows]
        mean.plot(rates, middle, label=systems[key].name, **style)
        mean.fill_between(
            rates,
            [min(row.ttft_rounds) for row in rows],
            [max(row.ttft_rounds) for row in rows],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
        tail.plot(rates, [row.ttft_p99 for row in rows], label=systems[key].name, **style)
    for axes, title in ((mean, "mean TTFT (median and range of rounds)"), (tail, "p99 TTFT")):
        axes.set_title(f"{trace}\n{title}", fontsize=10)
        axes.set_xlabel("requests a second")
        axes.set_ylabel("seconds")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
