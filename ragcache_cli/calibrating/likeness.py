"""Compares answers with exact ones, and chooses the smallest ratio at which they are alike enough.

The confidence bound is a percentile bootstrap: of 2,000 means of as many answers, drawn again with
replacement, the one that 5% lie below. It assumes nothing of how likenesses are spread, which is far from
a bell: most answers are equal and some have little in common. With few answers it is too hopeful.
Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ragcache_engine import Answer
from ragcache_engine.anywhere.rouge import rouge_l

RESAMPLES = 2000
LOWER_SHARE = 0.05
FEW = 30
"""With fewer answers, the confidence bound says little."""

_NO_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike an answer is to the exact one.

    rouge_l: 0 to 1. equal_tokens: the share of places, 0 to 1, at which both have the same token.
    has_gold: whether the answer contains an accepted one; None if none is known.
    borrows: whether the answer's prompt borrowed anything.
    """

    rouge_l: float
    equal_tokens: float
    has_gold: bool | None
    ttft_s: float
    borrows: bool


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
    def gold_share(self) -> float | None:
        """The share of answers that contain an accepted one; None if none is known."""
        known = [one.has_gold for one in self.counted if one.has_gold is not None]
        return fmean(known) if known else None

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
            _contains_any(answer.text, accepted) if accepted else None,
            answer.usage.ttft_s,
            not answer.usage.is_exact,
        )
        for answer, wanted, accepted in zip(answers, exact, gold, strict=True)
    ]
    return Run(ratio, answers, likenesses)


def bound_mean(values: Sequence[float]) -> float:
    """Return the lower 95% confidence bound of a mean. The same values give the same bound."""
    dice = random.Random(0)
    means = sorted(fmean(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(LOWER_SHARE * RESAMPLES)]


def choose(runs: Sequence[Run], least: float) -> Run | None:
    """Return the run of the smallest ratio whose lower bound is at least `least`; None if none is."""
    passing = [run for run in runs if run.ratio is not None and run.lower_bound >= least]
    return min(passing, key=lambda run: run.ratio or 0.0, default=None)


def _share_equal(one: Sequence[int], other: Sequence[int]) -> float:
    longest = max(len(one), len(other))
    return sum(a == b for a, b in zip(one, other, strict=False)) / longest if longest else 1.0


def _contains_any(answer: str, accepted: Sequence[str]) -> bool:
    """Return whether the answer contains an accepted one, whole words only, whatever their case."""
    said = f" {_plain(answer)} "
    return any(_plain(one) and f" {_plain(one)} " in said for one in accepted)


def _plain(text: str) -> str:
    return _NO_WORD.sub(" ", text.lower()).strip()
