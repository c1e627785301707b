"""Retrieval traces as values, and other traces drawn from them.

A question set asks each question once, which no service ever saw: what a cache lives on is that some
questions come again. So traces are resampled with Zipf weights, with or without a drift.
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
    """Requests in the order of their arrival, and how many tokens each document has."""

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
        """The same requests, cut to their first k documents."""
        return Trace(tuple(request[:k] for request in self.requests), self.tokens)


def zipf_weights(count: int, exponent: float = 1.0) -> list[float]:
    """Weight of each rank, the most popular first; they sum to what they sum to."""
    return [1.0 / rank**exponent for rank in range(1, count + 1)]


def draw_zipf(trace: Trace, requests: int, seed: int, *, exponent: float = 1.0) -> Trace:
    """So many requests, drawn from the trace's with Zipf weights over a ranking drawn first."""
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
    """Like `draw_zipf`, with another ranking of the questions after each `every` requests.

    share: of the places in the ranking, how many are dealt anew among those who held them; chosen at
      random, popular or not. 1 permutes the whole ranking: what was popular says nothing any more.
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
