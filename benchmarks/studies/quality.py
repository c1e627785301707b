"""How good an answer is, against any of those that are accepted: exact match, contained, ROUGE-L."""

from __future__ import annotations

import re
import statistics
import string
from collections.abc import Sequence
from dataclasses import dataclass

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
    """What an order of documents is worth, and what it gains.

    cached: share of the prompt tokens that were not computed. ttft_s: the mean.
    """

    quality: Quality
    cached: float
    ttft_s: float


def quality(answers: Sequence[str], accepted: Sequence[Sequence[str]]) -> Quality | None:
    """None if no question has an accepted answer; those without are passed over."""
    pairs = [(a, golds) for a, golds in zip(answers, accepted, strict=True) if golds]
    if not pairs:
        return None
    return Quality(
        questions=len(pairs),
        exact=statistics.fmean(max(exact(a, gold) for gold in golds) for a, golds in pairs),
        contained=statistics.fmean(max(contained(a, gold) for gold in golds) for a, golds in pairs),
        rouge_l=statistics.fmean(max(rouge_l(a, gold) for gold in golds) for a, golds in pairs),
    )


def normalised(text: str) -> str:
    """As SQuAD's evaluation does it: lower case, without punctuation, articles and extra blanks."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact(answer: str, gold: str) -> bool:
    return normalised(answer) == normalised(gold)


def contained(answer: str, gold: str) -> bool:
    """Whether the accepted answer stands in it, whole words only."""
    return bool(normalised(gold)) and f" {normalised(gold)} " in f" {normalised(answer)} "


def rouge_l(answer: str, gold: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004), without stemming."""
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
