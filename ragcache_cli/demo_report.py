"""Shows the results of the demo: a table, three sentences, what to try next, a picture, raw numbers."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from ragcache_cli.extras import needed
from ragcache_cli.folders import OTHER_OUTPUT, write_whole
from ragcache_cli.machine import Machine
from ragcache_cli.measurements import Asked, Round, Run, Side, mean_likeness, same_answers
from ragcache_engine import Warmed

COLOURS = ("#9aa0a6", "#1a73e8", "#12a182")
"""The sides' colours. Stock is grey; the other two differ in lightness, so also in black and white."""
FIGURES = 74
"""How many columns of the terminal the table's figures take."""
WORDS_FROM_WIDTH = FIGURES + 15
NAMES_FROM_WIDTH = FIGURES + 6
"""Columns from which a question's number may be as wide as the word "median"."""


def table(rounds: Sequence[Round], width: int) -> Table:
    """Make a table with a line for each question, and the means of each round.

    width: the terminal's columns; in a narrow one, the table has the questions' numbers without their
    texts.
    """
    has_words = width >= WORDS_FROM_WIDTH
    made = Table(
        title="Seconds from the question to the first token, and prompt tokens reused",
        caption="reused: not computed, from device, host or disk; with any position also borrowed ones\n"
        "equal: the answer is stock vLLM's, to the character",
        caption_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    made.add_column("#", justify="right")
    if has_words:
        made.add_column("question", overflow="ellipsis", no_wrap=True, max_width=width - FIGURES)
    for name in ("stock", "exact", "any"):
        made.add_column(f"TTFT s\n{name}", justify="right")
    made.add_column("prompt\ntokens", justify="right")
    for name in ("stock", "exact", "any"):
        made.add_column(f"reused\n{name}", justify="right")
    made.add_column("equal\nexact", justify="right")
    made.add_column("equal\nany", justify="right")
    for one in rounds:
        _add_round(made, one, has_words, has_names=width >= NAMES_FROM_WIDTH)
    return made


def _add_round(made: Table, one: Round, has_words: bool, *, has_names: bool) -> None:
    """Add the lines of a round. has_names: whether the means have a name, in whatever column."""
    beside_number = has_names and not has_words
    same = [same_answers(run, one.stock) for run in one.runs[1:]]
    for at, asked in enumerate(one.stock.asked):
        made.add_row(
            str(at + 1),
            *([asked.question] if has_words else []),
            *(_seconds(run.asked[at].ttft_s) for run in one.runs),
            f"{asked.prompt_tokens:,}",
            *(f"{_reused(run.asked[at]):.0%}" for run in one.runs),
            *(_yes_no(answers[at]) for answers in same),
            end_section=at == len(one.stock.asked) - 1,
        )
    made.add_row(
        "mean" if beside_number else "",
        *([f"mean, {one.title}"] if has_words else []),
        *(_seconds(run.mean_ttft_s) for run in one.runs),
        f"{one.stock.prompt_tokens // len(one.stock.asked):,}",
        *(f"{run.reused_share:.0%}" for run in one.runs),
        *(f"{sum(answers)}/{len(answers)}" for answers in same),
        style="bold",
    )
    made.add_row(
        "median" if beside_number else "",
        *(["median"] if has_words else []),
        *(_seconds(run.median_ttft_s) for run in one.runs),
        end_section=True,
    )


def summary(new: Round, again: Round, prefill_s: float) -> list[str]:
    """Write the three sentences: how much sooner, how many answers are equal, what the trade is.

    prefill_s: how long the passages took to prefill.
    """
    return [_sooner(new, again), _equal([new, again]), _trade(new, again, prefill_s)]


def _sooner(new: Round, again: Round) -> str:
    exact, anywhere, back = new.run(Side.EXACT), new.run(Side.ANYWHERE), again.run(Side.EXACT)
    return (
        f"Sooner: to {new.title}, first tokens came after {anywhere.mean_ttft_s:.2f} s at any "
        f"position, {_times(new.stock, anywhere)} stock vLLM's {new.stock.mean_ttft_s:.2f} s, and after "
        f"{exact.mean_ttft_s:.2f} s exactly, {_times(new.stock, exact)} stock's; when questions came "
        f"again, after {back.mean_ttft_s:.2f} s exactly, {_times(again.stock, back)} stock's "
        f"{again.stock.mean_ttft_s:.2f} s."
    )


def _equal(rounds: Sequence[Round]) -> str:
    exact, anywhere = (
        [same for one in rounds for same in same_answers(one.run(side), one.stock)]
        for side in (Side.EXACT, Side.ANYWHERE)
    )
    first = rounds[0]
    likeness = mean_likeness(first.run(Side.ANYWHERE), first.stock)
    return (
        f"Equal: {sum(exact)} of {len(exact)} exact answers are stock vLLM's to the character, and "
        f"{sum(anywhere)} of {len(anywhere)} at any position, whose {len(first.stock.asked)} first "
        f"answers have a mean ROUGE-L of {likeness:.2f} to stock's."
    )


def _trade(new: Round, again: Round, prefill_s: float) -> str:
    anywhere = new.run(Side.ANYWHERE)
    saved_s = new.stock.mean_ttft_s - anywhere.mean_ttft_s
    repaid = (
        f", which {round(prefill_s / saved_s):,} questions bring back"
        if saved_s > 0 and prefill_s >= saved_s
        else ""
    )
    exact_gains = again.run(Side.EXACT).mean_ttft_s < again.stock.mean_ttft_s
    exact = "and gain" if exact_gains else "and gained nothing here even"
    gaining = sum(
        one.ttft_s < stock.ttft_s
        for one, stock in zip(anywhere.asked, new.stock.asked, strict=True)
    )
    are_all_equal = all(same_answers(anywhere, new.stock))
    others = "though here the same" if are_all_equal else "of a small model often others"
    return (
        f"The trade: exact answers cost memory, {exact} where documents come again as they were; at any "
        f"position {_questions_gain(gaining, len(anywhere.asked))}, but answers are approximate, "
        f"{others}, and the passages took {prefill_s:.0f} s to prefill{repaid}."
    )


def _questions_gain(gaining: int, asked: int) -> str:
    if gaining == asked:
        return "every question gains"
    return f"{gaining} of {asked} questions gain{'s' * (gaining == 1)}"


def _times(stock: Run, run: Run) -> str:
    ratio = stock.mean_ttft_s / run.mean_ttft_s
    return f"{ratio:.1f} times sooner than" if ratio >= 1 else f"{1 / ratio:.2f} times later than"


def next_steps(program: str, ratio: float) -> list[str]:
    """Return the commands to try on one's own folder, each with what it does. program: how to call it."""
    anywhere = f"--reuse anywhere --recompute-ratio {ratio:g}"
    commands = {
        f'{program} ask "YOUR QUESTION" --corpus FOLDER': "exact",
        f'{program} ask "YOUR QUESTION" --corpus FOLDER {anywhere}': "at any position",
        f"{program} calibrate --corpus FOLDER --questions FILE": "which ratio your answers need",
        f"{program} warm --corpus FOLDER {anywhere}": "prefill all of it, onto disk",
        f"{program} demo --corpus FOLDER --questions FILE": "this comparison",
    }
    return [f"  {command}   # {what}" for command, what in commands.items()]


def draw(rounds: Sequence[Round], path: Path) -> None:
    """Draw the TTFT of each question as a PNG, stock above the others. Raises MissingExtra."""
    with needed("the picture"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    lines = list(_lines(rounds))
    sides = len(rounds[0].runs)
    count, bar = len(lines), 0.8 / sides
    figure = Figure(figsize=(10, 1.6 + 0.46 * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for place in range(sides):
        means = ", ".join(f"{one.runs[place].mean_ttft_s:.2f} s" for one in rounds)
        axes.barh(
            [at + (place - (sides - 1) / 2) * bar for at in range(count)],
            [asked[place].ttft_s for _, asked in lines],
            height=bar * 0.94,
            color=COLOURS[place],
            label=f"{rounds[0].runs[place].name}: mean {means}",
        )
    axes.set_yticks(range(count), [label for label, _ in lines])
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_ylim(count - 0.4, -0.6)  # the first question on top
    end = 0
    for one in rounds[:-1]:
        end += len(one.stock.asked)
        axes.axhline(end - 0.5, color="#888888", linewidth=0.8)
    axes.set_xlim(left=0)
    axes.set_xlabel("time to first token in seconds, from the question, retrieval included")
    axes.xaxis.grid(visible=True, color="#dddddd")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    titles = ", then ".join(one.title for one in rounds)
    figure.suptitle(f"Time to first token: {titles}", fontsize=13)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)


def _lines(rounds: Sequence[Round]) -> Iterator[tuple[str, tuple[Asked, ...]]]:
    """Yield each question's label, and its answers of all sides."""
    for one in rounds:
        for at, asked in enumerate(zip(*(run.asked for run in one.runs), strict=True), 1):
            text = f"{at}. {asked[0].question}"
            yield textwrap.fill(text, 52, max_lines=2, placeholder=" …"), asked


def write_figures(
    path: Path,
    rounds: Sequence[Round],
    warmed: Warmed,
    machine: Machine,
    versions: Mapping[str, str | None],
    settings: Mapping[str, Any],
    phases_s: Mapping[str, float],
) -> None:
    """Write all measurements, the machine and the versions as JSON. Raises CannotWrite."""
    content = {
        "settings": dict(settings),
        "machine": asdict(machine),
        "versions": dict(versions),
        "phases_s": {title: round(seconds, 3) for title, seconds in phases_s.items()},
        "prefilled": asdict(warmed),
        "rounds": [
            {"title": one.title, "runs": [_figures(run, one.stock) for run in one.runs]}
            for one in rounds
        ],
    }
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n", OTHER_OUTPUT)


def _figures(run: Run, stock: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "mean_ttft_s": run.mean_ttft_s,
        "median_ttft_s": run.median_ttft_s,
        "prompt_tokens": run.prompt_tokens,
        "cached": asdict(run.cached),
        "reused_share": run.reused_share,
        "same_answers_as_stock": sum(same_answers(run, stock)),
        "rouge_l_to_stock": mean_likeness(run, stock),
        "asked": [asdict(asked) for asked in run.asked],
    }


def _reused(asked: Asked) -> float:
    return (asked.cached.total + asked.borrowed.total) / asked.prompt_tokens


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def _yes_no(same: bool) -> str:
    return "[green]yes[/green]" if same else "[red]no[/red]"
