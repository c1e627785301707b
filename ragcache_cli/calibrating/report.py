"""Shows how alike answers were to exact ones: answer by answer, and each way of asking in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from ragcache_cli.calibrating.cases import Case
from ragcache_cli.calibrating.likeness import FEW, Likeness, Run, has_accuracy
from ragcache_engine.anywhere.calibration import Calibration

LONGEST_QUESTION = 48


def answers_table(cases: Sequence[Case], noise: Run, runs: Sequence[Run]) -> Table:
    """Make a table of the ROUGE-L of every answer."""
    shown = _table("ROUGE-L with the exact answer", "question", "exact again")
    for run in runs:
        shown.add_column(f"{run.ratio:g}", justify="right")
    for at, case in enumerate(cases):
        cells = [_cell(run.likenesses[at], run) for run in (noise, *runs)]
        shown.add_row(_shortened(case.asked.question), *cells)
    return shown


def ways_table(exact: Run, noise: Run, runs: Sequence[Run]) -> Table:
    """Make a table with a line for each way of asking. exact: the answers that all are compared with."""
    bound = "at least (95%)"
    columns = ("ratio", "right", bound, "F1", "ROUGE-L", bound, "equal tokens", "TTFT", "borrowed")
    shown = _table("Means of all answers", *columns)
    for name, run in (("exact", exact), ("exact, many at once", noise)):
        shown.add_row(name, *_means(run), "-")
    for run in runs:
        borrowed = f"{len(run.counted)} of {len(run.likenesses)}"
        shown.add_row(f"{run.ratio:g}", *_means(run), borrowed)
    return shown


def _means(run: Run) -> tuple[str, ...]:
    found = run.accuracy
    right = (
        (f"{found.share:.1%}", f"{found.lower_bound:.1%}", f"{found.f1:.2f}")
        if found
        else ("-",) * 3
    )
    return (
        *right,
        f"{run.rouge_l:.3f}",
        f"{run.lower_bound:.3f}",
        f"{run.equal_tokens:.0%}",
        f"{run.ttft_s * 1e3:,.0f} ms",
    )


def verdict(
    kept: Calibration | None, noise: Run, target: float, runs: Sequence[Run]
) -> Iterator[str]:
    """Write what was wanted, and whether a ratio gave it."""
    likeness = f"Two exact runs have a ROUGE-L of {noise.rouge_l:.3f} with each other"
    wanted = f"Wanted is, as the lower 95% confidence bound, {target:g} times"
    if has_accuracy(runs):
        yield f"{wanted} the share of exact answers that are right. {likeness}; it decides nothing."
    else:
        yield f"{likeness}. {wanted} that: {target * noise.rouge_l:.3f}."
        if noise.accuracy:
            yield f"[yellow]Fewer than {FEW} exact answers are right: too few to decide.[/yellow]"
    fewest = min(len(run.counted) for run in runs)
    if fewest < FEW:
        yield (
            f"[yellow]Only {fewest} answers were compared, so the bound says little: ask at least {FEW} "
            f"questions.[/yellow]"
        )
    if kept is None:
        yield "[bold]No ratio passes, and none is kept.[/bold] Try higher ones, or other donors."
        return
    yield f"[bold]Kept: recompute_ratio={kept.recompute_ratio:g}[/bold]"
    if kept.right is not None:
        yield f"Right are {kept.right:.1%} of its answers, and {kept.exact_right:.1%} of the exact ones."


def answer_lines(
    cases: Sequence[Case], exact: Run, noise: Run, runs: Sequence[Run]
) -> Iterator[str]:
    """Write all answers as lines of JSON."""
    ways = {"exact": exact, "exact again": noise, **{f"{run.ratio:g}": run for run in runs}}
    for at, case in enumerate(cases):
        for way, run in ways.items():
            answer, likeness = run.answers[at], run.likenesses[at]
            line = {
                "question": case.asked.question,
                "documents": [document.id for document in case.documents],
                "way": way,
                "answer": answer.text,
                "rouge_l": likeness.rouge_l,
                "equal_tokens": likeness.equal_tokens,
                "has_gold": likeness.grade and likeness.grade.is_right,
                "f1": likeness.grade and likeness.grade.f1,
                "ttft_s": likeness.ttft_s,
                "prompt_tokens": answer.usage.prompt_tokens,
                "borrowed_tokens": answer.usage.borrowed.total,
                "recomputed_tokens": answer.usage.recomputed_tokens,
                "why_exact": answer.usage.why_exact,
            }
            yield json.dumps(line, ensure_ascii=False) + "\n"


def _table(title: str, *columns: str) -> Table:
    shown = Table(title=title, header_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for at, name in enumerate(columns):
        shown.add_column(name, justify="right" if at else "left")
    return shown


def _cell(likeness: Likeness, run: Run) -> str:
    if run.ratio is not None and not likeness.borrows:
        return "exact"
    return f"{likeness.rouge_l:.2f}"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_QUESTION else f"{text[: LONGEST_QUESTION - 1]}…"
