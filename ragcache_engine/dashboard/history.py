"""How figures changed over time: a bounded row of observations, and the rates between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ragcache_engine.dashboard.observation import Observation
from ragcache_engine.tiers.counters import TierCounters

REMEMBERED = 450
"""So many observations are remembered: fifteen minutes, at one in two seconds."""

SOURCES = ("device", "host", "disk")

STORE = "store"
"""What came from the store that hosts share. The counters hold it among what came from the disk."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened between two observations. at: the later one's time. seconds: between them.

    prompt_tokens: of requests that ended. ratios: the share of them that each source gave; empty if none
      ended. approximate_ratio: the share that was borrowed from another context. recomputed_ratio: the
      share computed anew because its document was borrowed.
    evicted: blocks by tier.
    """

    at: float
    seconds: float
    prompt_tokens: int
    ratios: Mapping[str, float]
    approximate_ratio: float
    recomputed_ratio: float
    evicted: Mapping[str, int]


class History:
    """The last observations, in their order. One thread adds to it."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._intervals: deque[Interval] = deque(maxlen=remembered)
        self._last: Observation | None = None

    def add(self, seen: Observation) -> None:
        """Take in one more observation."""
        last, self._last = self._last, seen
        if last is not None and seen.at > last.at:
            self._intervals.append(_compare(last, seen))

    def intervals(self) -> tuple[Interval, ...]:
        """Return what happened between the observations, the oldest first."""
        return tuple(self._intervals)


def tokens_by_source(counters: TierCounters) -> dict[str, int]:
    """Count the cached prompt tokens of all finished requests, by where they came from.

    The store is among the sources once something came from it.
    """
    tokens = {source: int(getattr(counters, f"{source}_tokens")) for source in SOURCES}
    if counters.shared_tokens:
        tokens["disk"] -= counters.shared_tokens
        tokens[STORE] = counters.shared_tokens
    return tokens


def prompt_tokens(counters: TierCounters, approximate: int = 0) -> int:
    """Count the prompt tokens of all finished requests."""
    return sum(tokens_by_source(counters).values()) + counters.computed_tokens + approximate


def _compare(before: Observation, after: Observation) -> Interval:
    old, new = before.counters, after.counters
    if new.ended < old.ended:
        old = TierCounters()  # the model was started again, and its counts with it
    earlier = tokens_by_source(old)
    more = {
        source: tokens - earlier.get(source, 0) for source, tokens in tokens_by_source(new).items()
    }
    borrowed = max(0, after.approximate_tokens - before.approximate_tokens)
    recomputed = new.recomputed_tokens - old.recomputed_tokens
    total = sum(more.values()) + new.computed_tokens - old.computed_tokens + borrowed
    return Interval(
        after.at,
        after.at - before.at,
        total,
        {source: tokens / total for source, tokens in more.items()} if total > 0 else {},
        borrowed / total if total > 0 else 0.0,
        recomputed / total if total > 0 else 0.0,
        {tier: blocks - old.evicted[tier] for tier, blocks in new.evicted.items()},
    )
