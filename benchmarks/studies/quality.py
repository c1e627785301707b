"""Grades answers against the accepted ones."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from ragcache_cli.bench.context import RunContext
from ragcache_cli.bench.free_answers import TOP_K, ask_freely, choose_questions
from ragcache_cli.bench.grading import contained, exact
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.answer_checks import answers
from ragcache_cli.bench.report.markdown import table
from ragcache_cli.bench.systems import FULL
from ragcache_cli.bench.worker_client import Worker
from ragcache_engine.anywhere.rouge import rouge_l
from studies.full_plans import QUALITY


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over `questions` answers, each between 0 and 1."""

    questions: int
    exact: float
    contained: float
    rouge_l: float


@dataclass(frozen=True, slots=True)
class Graded:
    """The quality of a system's answers, and their cost.

    cached: the share of the prompt tokens that were not computed. ttft_s: the mean.
    """

    quality: Quality
    cached: float
    ttft_s: float


def grade(texts: Sequence[str], accepted: Sequence[Sequence[str]]) -> Quality | None:
    """Grade answers against the accepted ones of their questions; the best match counts.

    Skips questions without an accepted answer. Returns None if no question has one.
    """
    pairs = [(a, golds) for a, golds in zip(texts, accepted, strict=True) if golds]
    if not pairs:
        return None
    return Quality(
        questions=len(pairs),
        exact=statistics.fmean(max(exact(a, gold) for gold in golds) for a, golds in pairs),
        contained=statistics.fmean(max(contained(a, gold) for gold in golds) for a, golds in pairs),
        rouge_l=statistics.fmean(max(rouge_l(a, gold) for gold in golds) for a, golds in pairs),
    )


def study_quality(count: int, workers: Sequence[Worker], context: RunContext) -> dict[str, Any]:
    """Grade free answers of RAGCache and of every system that puts documents into another order.

    Returns a Graded for each system, as JSON; nothing if no question has an accepted answer.
    """
    ready = context.corpora.ready(context.main, TOP_K)
    numbers = choose_questions(count, context)
    accepted = [ready.given.questions[number].answers for number in numbers]
    wanted = [one for one in workers if one.system == FULL or one.system.changes_prompt]
    found: dict[str, Any] = {}
    for key, given in ask_freely(wanted, count, context).items():
        prompt = sum(answer["prompt"] for answer in given)
        if graded := grade([answer["text"] for answer in given], accepted):
            cached = sum(sum(answer["cached"]) for answer in given) / prompt
            ttft_s = statistics.fmean(answer["ttft_s"] for answer in given)
            found[key] = asdict(Graded(graded, cached, ttft_s))
    return found


def answers_and_quality(record: RunRecord) -> Iterator[str]:
    """Write the section of the report on how many answers differ, and on their quality."""
    lines = list(answers(record))
    graded = TypeAdapter(dict[str, Graded]).validate_python(record.studies.get(QUALITY) or {})
    if graded and not lines:
        lines = ["## Answers", ""]
    yield from lines
    if not graded:
        return
    yield "Quality, for each setting that changes the prompt, beside the one that does not:"
    yield ""
    yield from table(
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
                record.name_of(key),
                str(row.quality.questions),
                f"{row.quality.exact:.1%}",
                f"{row.quality.contained:.1%}",
                f"{row.quality.rouge_l:.3f}",
                f"{row.cached:.0%}",
                f"{row.ttft_s:.3f}",
            )
            for key, row in graded.items()
        ),
    )
