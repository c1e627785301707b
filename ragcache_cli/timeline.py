"""Show what happened between a question and its first token, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_cli.extras import needed
from ragcache_cli.folders import make_folder, whole_file
from ragcache_engine import (
    SpeculationOutcome,
    SpeculationReport,
    Usage,
)
from ragcache_engine.dashboard.lanes import lanes

OTHER_PICTURE = "name another place with --timeline"
SEARCH, KEPT, LOST, MODEL = "#4878a8", "#55a868", "#c0504d", "#8172b2"


def hidden_share(report: SpeculationReport) -> float:
    """Return the share of the search that ran during the computation that led to the answer, 0 to 1.

    It is 0 if no guess was adopted. The paper's Table 3 has the time of search that was not hidden.
    """
    seen = lanes(report)
    ended_s = seen.stages_s[-1] if seen.stages_s else 0.0
    if report.outcome is not SpeculationOutcome.ADOPTED or not seen.speculations or not ended_s:
        return 0.0
    return max(0.0, ended_s - seen.speculations[-1].start_s) / ended_s


def show(report: SpeculationReport, console: Console) -> None:
    """Print a line for each event."""
    table = Table(box=None, pad_edge=False, title_justify="left", show_header=False)
    table.add_column(justify="right", style="dim")
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", style="dim")
    for event in report.timeline:
        table.add_row(f"{event.at_s:.3f} s", event.step.value, escape(event.detail))
    console.print(table)
    console.print(f"[dim]speculation: {report.outcome.value}[/dim]", highlight=False)


def draw(question: str, usage: Usage, path: Path) -> None:
    """Draw the timeline as a PNG: a lane each for search, speculation and model.

    Raises MissingExtra, CannotWrite.
    """
    with needed("the picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    seen = lanes(usage.speculation)
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if seen.stages_s:
        axes.barh(2, seen.stages_s[-1], height=0.5, color=SEARCH, alpha=0.45)
        axes.vlines(seen.stages_s, 1.75, 2.25, colors=SEARCH, linewidth=1)
        axes.plot(seen.new_s, [2] * len(seen.new_s), "o", color=SEARCH, markersize=5)
    for span in seen.speculations:
        colour = KEPT if span.was_of_use else LOST
        axes.barh(1, span.end_s - span.start_s, 0.5, span.start_s, color=colour, alpha=0.6)
        axes.text(span.start_s, 1.3, span.fate, fontsize=8, color=colour, va="bottom")
    if seen.model_s is not None and seen.first_token_s is not None:
        width = seen.first_token_s - seen.model_s
        axes.barh(0, width, 0.5, seen.model_s, color=MODEL, alpha=0.6)
        axes.plot(seen.first_token_s, 0, "D", color=MODEL, markersize=7)
        axes.annotate(
            "first token", (seen.first_token_s, 0), (7, 0), textcoords="offset points", va="center"
        )
    if seen.prompt_s is not None:
        axes.axvline(seen.prompt_s, color="black", linewidth=1, linestyle=":")
        axes.text(seen.prompt_s, 2.45, " prompt", fontsize=8, va="bottom")
    axes.set_yticks([2, 1, 0], ["search\n(dots: new documents)", "speculation", "model"])
    axes.set_ylim(-0.5, 2.8)
    axes.set_xlim(0, max(0.001, usage.ttft_s, *seen.stages_s, seen.prompt_s or 0) * 1.12)
    axes.set_xlabel("seconds since the question")
    axes.xaxis.grid(visible=True, color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    short = question if len(question) <= 80 else question[:79] + "…"
    figure.suptitle(f"{short}  (TTFT {usage.ttft_s:.3f} s)", fontsize=11)
    make_folder(path.parent, OTHER_PICTURE)
    with whole_file(path, OTHER_PICTURE) as beside:
        figure.savefig(beside, dpi=130)


def picture_path(given: Path, number: int) -> Path:
    """Return the file for the picture of a question. number: the question's number, from 1.

    given: a folder, or a file ending in .png, to which later questions add their number.
    """
    if given.suffix.lower() != ".png":
        return given / f"timeline-{number}.png"
    return given if number == 1 else given.with_stem(f"{given.stem}-{number}")
