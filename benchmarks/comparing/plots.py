"""Draws the picture of a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comparing.figures import Play, plays_at, points, system_figures
from comparing.plan import MAIN_PART
from comparing.systems import SYSTEMS

COLOURS = {
    "off": "#9aa0a6",
    "on": "#5f6368",
    "lru": "#e8710a",
    "arc": "#b06000",
    "ragcache": "#1a73e8",
}
OTHER = "#12a182"


def draw(plays: Sequence[Play], path: Path) -> None:
    """Draw mean and p99 TTFT against the request rate, a line a system and a row a trace.

    Draws only the main part, and nothing if no load has a rate.
    """
    shown = [play for play in plays if play.part == MAIN_PART and play.rate]
    traces = list(dict.fromkeys(play.trace for play in shown))
    if not traces:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(9, 3.9 * len(traces)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(traces), 2, squeeze=False)
    for trace, (mean, tail) in zip(traces, panels, strict=True):
        found = [plays_at(shown, point) for point in points(shown) if point[1] == trace]
        for key in dict.fromkeys(key for point in found for key in point):
            rows = [system_figures(point[key]) for point in found if key in point]
            rows.sort(key=lambda row: row.rate or 0.0)
            rates, colour = [row.rate for row in rows], COLOURS.get(key, OTHER)
            style = {"color": colour, "marker": "o", "markersize": 4, "label": SYSTEMS[key].name}
            mean.plot(rates, [row.ttft for row in rows], **style)
            least, most = ([edge(row.ttft_rounds) for row in rows] for edge in (min, max))
            mean.fill_between(rates, least, most, color=colour, alpha=0.15, linewidth=0)
            tail.plot(rates, [row.ttft_p99 for row in rows], **style)
        for axes, title in ((mean, "mean TTFT (median and range of rounds)"), (tail, "p99 TTFT")):
            axes.set_title(f"{trace}\n{title}", fontsize=10)
            axes.set(xlabel="requests a second", ylabel="seconds", yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.grid(visible=True, color="#dddddd")
            axes.spines[["top", "right"]].set_visible(False)
    lines = panels[0][0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)
