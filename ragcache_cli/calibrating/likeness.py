"""Compares answers with exact ones, and chooses the smallest ratio at which they are good enough.

Where accepted answers are known, good enough means as often right: a wording of the same fact is no loss.
Elsewhere it means as like the exact answers as these are like themselves.
The confidence bound is a percentile bootstrap: of 2,000 means of as many answers, drawn again with
replacement, the one that 5% lie below. It assumes nothing of how likenesses are spread, which is far from
a bell: most answers are equal and some have little in common. With few answers it is too hopeful. Shares
of right answers are compared question by question: a right answer where the exact one is wrong counts 1,
the reverse -1.
Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ragcache_cli.calibrating.grading import is_right, token_f1
from ragcache_engine import Answer
from ragcache_engine.anywhere.rouge import rouge_l

RESAMPLES = 2000
LOWER_SHARE = 0.05
FEW = 30
"""With fewer answers, the confidence bound says little."""


@dataclass(frozen=True, slots=True)
class Grade:
    """An answer beside the accepted ones of its question.

    is_right, is_exact_right: whether it, and the exact answer, contain an accepted one. f1: of the words
    it shares with the nearest accepted one, 0 to 1.
    """

    is_right: bool
    is_exact_right: bool
    f1: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike an answer is to the exact one.

    rouge_l: 0 to 1. equal_tokens: the share of places, 0 to 1, at which both have the same token.
    grade: None if no accepted answer is known.
    borrows: whether the answer's prompt borrowed anything.
    """

    rouge_l: float
    equal_tokens: float
    grade: Grade | None
    ttft_s: float
    borrows: bool


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The share of answers that are right, of the questions whose accepted answers are known.

    share: of these answers; exact_share, exact_count: share and number of the exact answers to the same
    questions. lower_bound: of `share`, 95%, by pairs. f1: the mean.
    """

    share: float
    exact_share: float
    exact_count: int
    lower_bound: float
    f1: float


@dataclass(frozen=True, slots=True)
class Run:
    """All questions asked in one way. ratio: None for exact answers. answers: in the cases' order."""

    ratio: float | None
    answers: Sequence[Answer]
    likenesses: Sequence[Likeness]

    @property
    def counted(self) -> list[Likeness]:
        """Those that tell about the ratio: an answer that borrowed nothing is exact at every ratio."""
        return [one for one in self.likenesses if one.borrows or self.ratio is None]

    @property
    def rouge_l(self) -> float:
        """The mean likeness."""
        return fmean(one.rouge_l for one in self.counted)

    @property
    def lower_bound(self) -> float:
        """The lower 95% confidence bound of the mean likeness."""
        return bound_mean([one.rouge_l for one in self.counted])

    @property
    def equal_tokens(self) -> float:
        """The mean share of equal tokens."""
        return fmean(one.equal_tokens for one in self.counted)

    @property
    def accuracy(self) -> Accuracy | None:
        """How many answers are right; None if no accepted answer is known."""
        grades = [one.grade for one in self.counted if one.grade]
        if not grades:
            return None
        exact_share = fmean(one.is_exact_right for one in grades)
        return Accuracy(
            share=fmean(one.is_right for one in grades),
            exact_share=exact_share,
            exact_count=sum(one.is_exact_right for one in grades),
            lower_bound=exact_share
            + bound_mean([one.is_right - one.is_exact_right for one in grades]),
            f1=fmean(one.f1 for one in grades),
        )

    @property
    def ttft_s(self) -> float:
        """The mean time to the first token, in seconds."""
        return fmean(one.ttft_s for one in self.counted)


def compare(
    answers: Sequence[Answer],
    exact: Sequence[Answer],
    gold: Sequence[Sequence[str]],
    ratio: float | None = None,
) -> Run:
    """Compare each answer with the exact one to the same question. gold: accepted answers of each."""
    likenesses = [
        Likeness(
            rouge_l(answer.text, wanted.text),
            _share_equal(answer.token_ids, wanted.token_ids),
            _grade(answer.text, wanted.text, accepted) if accepted else None,
            answer.usage.ttft_s,
            not answer.usage.is_exact,
        )
        for answer, wanted, accepted in zip(answers, exact, gold, strict=True)
    ]
    return Run(ratio, answers, likenesses)


def bound_mean(values: Sequence[float], share_below: float = LOWER_SHARE) -> float:
    """Return the value that this share of the means lie below: by default, the lower 95% bound.

    The same values give the same bound.
    """
    dice = random.Random(0)
    means = sorted(fmean(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(share_below * RESAMPLES)]


def has_accuracy(runs: Sequence[Run]) -> bool:
    """Return whether enough exact answers are right for a loss of right ones to show."""
    return all(run.accuracy and run.accuracy.exact_count >= FEW for run in runs)


def choose(runs: Sequence[Run], noise: float, target: float) -> Run | None:
    """Return the run of the smallest ratio that passes; None if none does.

    runs: those at a ratio. target: what the lower bound must reach, as a share of what exact answers
    reach: of the share that is right, where `has_accuracy` says so, else of `noise`, their mean likeness.
    """
    by_accuracy = has_accuracy(runs)

    def passes(run: Run) -> bool:
        if by_accuracy and run.accuracy:
            return run.accuracy.lower_bound >= target * run.accuracy.exact_share
        return run.lower_bound >= target * noise

    return min(filter(passes, runs), key=lambda run: run.ratio or 0.0, default=None)


def _grade(answer: str, exact: str, accepted: Sequence[str]) -> Grade:
    return Grade(is_right(answer, accepted), is_right(exact, accepted), token_f1(answer, accepted))


def _share_equal(one: Sequence[int], other: Sequence[int]) -> float:
    longest = max(len(one), len(other))
    return sum(a == b for a, b in zip(one, other, strict=False)) / longest if longest else 1.0
