"""Shows the results of the demo: a table for the terminal, a picture, and the raw numbers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from rich import box
from rich.table import Table

from ragcache_cli.extras import needed
from ragcache_cli.machine import Machine
from ragcache_cli.measurements import Run, same_answers
from ragcache_engine import CachedTokens

COLOURS = ("#9aa0a6", "#1a73e8", "#12a182")
"""The chains' colours. Stock is grey; the other two differ in lightness, so also in black and white."""
FIGURES = 90
"""How many columns of the terminal the table's figures take."""
WORDS_FROM_WIDTH = FIGURES + 15


def table(stock: Run, others: Sequence[Run], width: int) -> Table:
    """Make a table with a line for each question, then the totals.

    Every run answered the same questions in the same order. width: the terminal's columns; in a narrow
    one, the table has the questions' numbers without their texts.
    """
    runs = [stock, *others]
    letters = [f"({letter})" for letter in ascii_lowercase[: len(runs)]]
    names = "   ".join(f"{at} {run.name}" for at, run in zip(letters, runs, strict=True))
    has_words = width >= WORDS_FROM_WIDTH
    made = Table(
        title="Time to first token (TTFT), from the question, retrieval included",
        caption=f"{names}\ncached: prompt tokens not computed again, from device/host/disk",
        caption_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    made.add_column("#", justify="right")
    if has_words:
        made.add_column("question", overflow="ellipsis", no_wrap=True, max_width=width - FIGURES)
    for letter in letters:
        made.add_column(f"TTFT s\n{letter}", justify="right")
    made.add_column("prompt\ntokens", justify="right")
    for letter in letters:
        made.add_column(f"cached\n{letter}", justify="right")
    made.add_column(f"answer as (a)\n{' '.join(letters[1:])}", justify="right")
    same = [same_answers(run, stock) for run in others]
    for at, asked in enumerate(stock.asked):
        made.add_row(
            str(at + 1),
            *([asked.question] if has_words else []),
            *(_seconds(run.asked[at].ttft_s) for run in runs),
            _count(asked.prompt_tokens),
            *(_tiers(run.asked[at].cached) for run in runs),
            " ".join(_yes_no(answers[at]) for answers in same),
            end_section=at == len(stock.asked) - 1,
        )
    blank = [""] if has_words else []
    made.add_row("mean", *blank, *(_seconds(run.mean_ttft_s) for run in runs))
    made.add_row("median", *blank, *(_seconds(run.median_ttft_s) for run in runs))
    made.add_row(
        "sum",
        *blank,
        *(_seconds(sum(run.ttfts_s)) for run in runs),
        _count(stock.prompt_tokens),
        *(_tiers(run.cached) for run in runs),
        " ".join(f"{sum(answers)}/{len(answers)}" for answers in same),
        style="bold",
    )
    return made


def summary(stock: Run, others: Sequence[Run]) -> list[str]:
    """Write a sentence for each run that is compared with stock."""
    lines = []
    for run in others:
        share = run.cached.total / run.prompt_tokens
        stock_share = stock.cached.total / stock.prompt_tokens
        equal = sum(same_answers(run, stock))
        lines.append(
            f"{run.name}: first token after {run.mean_ttft_s:.2f} s on average (stock "
            f"{stock.mean_ttft_s:.2f} s, {_times(stock.mean_ttft_s / run.mean_ttft_s)}), "
            f"{share:.0%} of the prompt tokens cached (stock {stock_share:.0%}), "
            f"{equal} of {len(stock.asked)} answers as stock."
        )
    return lines


def remark_if_all_fits(stock: Run, answer_tokens: int, device_tokens: int) -> str | None:
    """Remark that stock vLLM's own cache does as well if the device cache holds every token; else None.

    answer_tokens: the most tokens that all answers of the run have together. device_tokens: how many
    tokens the device cache holds.
    """
    tokens = stock.prompt_tokens + answer_tokens
    if tokens > device_tokens:
        return None
    return (
        f"These {tokens:,} tokens fit the device cache ({device_tokens:,}), where stock vLLM's own "
        f"prefix cache does as well. make bench-quick (ragcache bench --quick) compares where they "
        f"do not fit."
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times as slow"


def draw(stock: Run, others: Sequence[Run], path: Path) -> None:
    """Draw the TTFT of each question as a PNG, stock above the others. Raises MissingExtra."""
    with needed("the picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    runs = [stock, *others]
    count, bar = len(stock.asked), 0.8 / len(runs)
    figure = Figure(figsize=(10, 1.6 + 0.46 * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        axes.barh(
            [at + (place - (len(runs) - 1) / 2) * bar for at in range(count)],
            run.ttfts_s,
            height=bar * 0.94,
            color=colour,
            label=f"{run.name}: mean {run.mean_ttft_s:.2f} s, median {run.median_ttft_s:.2f} s",
        )
    axes.set_yticks(range(count), [_label(at, run) for at, run in enumerate(stock.asked)])
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_ylim(count - 0.4, -0.6)  # the first question on top
    axes.set_xlim(left=0)
    axes.set_xlabel("time to first token in seconds, from the question, retrieval included")
    axes.xaxis.grid(visible=True, color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle("Time to first token, question by question", fontsize=13)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def write_figures(
    path: Path,
    runs: Sequence[Run],
    machine: Machine,
    versions: Mapping[str, str | None],
    settings: Mapping[str, Any],
    phases_s: Mapping[str, float],
) -> None:
    """Write all measurements, the machine and the versions as JSON."""
    content = {
        "settings": dict(settings),
        "machine": asdict(machine),
        "versions": dict(versions),
        "phases_s": {title: round(seconds, 3) for title, seconds in phases_s.items()},
        "runs": [
            {
                "name": run.name,
                "mean_ttft_s": run.mean_ttft_s,
                "median_ttft_s": run.median_ttft_s,
                "prompt_tokens": run.prompt_tokens,
                "cached": asdict(run.cached),
                "same_answers_as_first_run": sum(same_answers(run, runs[0])),
                "asked": [asdict(asked) for asked in run.asked],
            }
            for run in runs
        ],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _label(at: int, asked: Any) -> str:
    return textwrap.fill(f"{at + 1}. {asked.question}", 52, max_lines=2, placeholder=" …")


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def _count(value: int) -> str:
    return f"{value:,}"


def _tiers(cached: CachedTokens) -> str:
    """ "960", or "960/64/0" once a slower tier gave something."""
    if not cached.host and not cached.disk:
        return _count(cached.device)
    return f"{_count(cached.device)}/{_count(cached.host)}/{_count(cached.disk)}"


def _yes_no(same: bool) -> str:
    return "[green]yes[/green]" if same else "[red]no[/red]"
