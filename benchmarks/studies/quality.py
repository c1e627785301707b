"""Grades answers against the accepted ones: exact match, contained, ROUGE-L."""

from __future__ import annotations

import re
import statistics
import string
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from ragcache_cli.bench.context import RunContext
from ragcache_cli.bench.free_answers import TOP_K, ask_freely, choose_questions
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.answer_checks import answers
from ragcache_cli.bench.report.markdown import table
from ragcache_cli.bench.systems import FULL
from ragcache_cli.bench.worker_client import Worker
from studies.full_plans import QUALITY

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = re.compile(r"[a-z0-9]+")


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


def normalised(text: str) -> str:
    """Bring a text into the form of SQuAD's evaluation: lower case, no punctuation, no articles."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(answer: str, gold: str) -> bool:
    return normalised(answer) == normalised(gold)


def contained(answer: str, gold: str) -> bool:
    """Return whether the answer contains the accepted one, whole words only."""
    return bool(normalised(gold)) and f" {normalised(gold)} " in f" {normalised(answer)} "


def rouge_l(answer: str, gold: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004), without stemming."""
    mine, theirs = _WORDS.findall(answer.lower()), _WORDS.findall(gold.lower())
    common = _longest_common(mine, theirs)
    if not common:
        return 0.0
    precision, recall = common / len(mine), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    row = [0] * (len(right) + 1)
    for word in left:
        before = 0
        for at, other in enumerate(right, 1):
            before, row[at] = row[at], before + 1 if word == other else max(row[at], row[at - 1])
    return row[-1]


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
