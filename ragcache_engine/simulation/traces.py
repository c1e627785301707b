"""Retrieval traces as values, and longer traces drawn from them.

A question set asks each question once. Users of a service ask some questions again and again, and a
cache lives on that. So traces are resampled with Zipf weights, with or without a drift.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

Request = tuple[str, ...]
"""Document ids in the order of the prompt."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, and the tokens of each document by its id.

    Raises ValueError for a document without tokens.
    """

    requests: tuple[Request, ...]
    tokens: Mapping[str, int]

    def __post_init__(self) -> None:
        for request in self.requests:
            for document in request:
                if self.tokens.get(document, 0) < 1:
                    raise ValueError(
                        f"a document has at least one token, got {self.tokens.get(document)} for "
                        f"{document!r}; give its token count"
                    )

    def __len__(self) -> int:
        return len(self.requests)

    def top(self, k: int) -> Trace:
        """Return the same requests, each cut to its first k documents."""
        return Trace(tuple(request[:k] for request in self.requests), self.tokens)


def zipf_weights(count: int, exponent: float = 1.0) -> list[float]:
    """Return the weight of each rank, the most popular first. The weights do not sum to 1."""
    return [1.0 / rank**exponent for rank in range(1, count + 1)]


def draw_zipf(trace: Trace, requests: int, seed: int, *, exponent: float = 1.0) -> Trace:
    """Draw requests from the trace, with Zipf weights over a random ranking of its requests.

    requests: how many to draw.
    """
    return draw_drifting(trace, requests, seed, every=max(1, requests), exponent=exponent)


def draw_drifting(
    trace: Trace,
    requests: int,
    seed: int,
    *,
    every: int = 1_000,
    share: float = 1.0,
    exponent: float = 1.0,
) -> Trace:
    """Draw like `draw_zipf`, and change the ranking after each `every` requests.

    share: share of the places in the ranking, chosen at random, whose questions are shuffled at each
      change. 1 shuffles the whole ranking: past popularity says nothing about future popularity.
    Raises ValueError for values out of range, and for a trace without requests.
    """
    if requests < 0 or every < 1 or not 0.0 <= share <= 1.0:
        raise ValueError("requests is 0 or more, every 1 or more, share between 0 and 1")
    if not trace.requests:
        raise ValueError("there is nothing to draw from: the trace has no requests")
    random = Random(seed)
    drawn: list[Request] = []
    cumulative = list(accumulate(zipf_weights(len(trace), exponent)))
    for ranking in _rankings(trace.requests, random, share):
        now = min(every, requests - len(drawn))
        drawn += random.choices(ranking, cum_weights=cumulative, k=now)
        if len(drawn) == requests:
            break
    return Trace(tuple(drawn), trace.tokens)


def _rankings(
    questions: Sequence[Request], random: Random, share: float
) -> Iterator[list[Request]]:
    ranking = list(questions)
    random.shuffle(ranking)
    while True:
        yield ranking
        places = random.sample(range(len(ranking)), round(share * len(ranking)))
        moved = [ranking[place] for place in places]
        random.shuffle(moved)
        for place, question in zip(places, moved, strict=True):
            ranking[place] = question
