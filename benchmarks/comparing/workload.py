"""Draws which questions to ask, and when: once, from a seed, so the same for every system."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

HEAD = 0.6
"""The share of the retrievals by which the paper counts the most wanted documents."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question at one time.

    question: its number in the question set. at_s: seconds after the start of the play; 0 if each
    request starts when an earlier one ends. max_tokens: the most tokens of the answer.
    """

    question: int
    at_s: float
    max_tokens: int


def draw_questions(questions: int, count: int, zipf: float | None, seed: int) -> list[int]:
    """Draw `count` numbers below `questions`.

    zipf: the exponent of the Zipf weights, which the questions get in a random order. None: draw
    nothing; the questions come in the order of the set, again and again.
    """
    if zipf is None:
        return [number % questions for number in range(count)]
    dice = random.Random(seed)
    shuffled = dice.sample(range(questions), questions)
    weights = [(rank + 1) ** -zipf for rank in range(questions)]
    return dice.choices(shuffled, weights, k=count)


def draw_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Draw when `count` requests of a Poisson process of `rate` a second arrive: seconds, rising.

    Raises ValueError unless the rate is above 0.
    """
    if rate <= 0:
        raise ValueError(f"a rate is above 0 requests a second, got {rate}")
    dice = random.Random(seed)
    now, times = 0.0, []
    for _ in range(count):
        now += dice.expovariate(rate)
        times.append(now)
    return times


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly a trace asks for documents, counted as in the paper's section on the miss rate.

    documents: how many different documents were retrieved. head: how many of them, the most wanted,
    take 60% of the retrievals. corpus: how many documents there are. sets: how many different sequences
    of documents.
    """

    requests: int
    retrievals: int
    documents: int
    head: int
    corpus: int
    sets: int

    @property
    def head_share(self) -> float:
        return self.head / self.corpus

    def __str__(self) -> str:
        return (
            f"{self.requests} requests for {self.documents} of {self.corpus} documents in "
            f"{self.sets} different sets; {self.head} documents ({self.head_share:.1%} of the "
            f"corpus) take {HEAD:.0%} of the retrievals (the paper's MMLU trace: 3%)"
        )


def measure_skew(found: Sequence[Sequence[str]], corpus: int) -> Skew:
    """Count how unevenly documents are retrieved.

    found: the documents of each request, nearest first. corpus: how many documents there are.
    """
    uses = Counter(name for documents in found for name in documents)
    retrievals, reached, head = sum(uses.values()), 0, 0
    for count in sorted(uses.values(), reverse=True):
        if reached >= HEAD * retrievals:
            break
        reached, head = reached + count, head + 1
    return Skew(
        requests=len(found),
        retrievals=retrievals,
        documents=len(uses),
        head=head,
        corpus=corpus,
        sets=len({tuple(documents) for documents in found}),
    )
