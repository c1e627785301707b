"""PGDSF: among the leaves, the one cheapest to compute again leaves first.

Units: costs, priorities and the clock are seconds per token. One instance a tier, so each has its
clock. Source: RAGCache, §5.1, formulas 2 to 4 and Algorithm 1.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.ranked import Ranked
from ragcache_engine.knowledge.node import Node


def priority(clock: float, uses: int, cost_s_per_token: float) -> float:
    """Formula 2, with formula 4 for cost over size."""
    return clock + uses * cost_s_per_token


class PGDSF(Ranked):
    """The paper's policy, to the letter."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0.0

    @property
    def clock(self) -> float:
        return self._clock

    def rank(self, node: Node) -> float:
        return priority(self._clock, node.uses, node.cost_s_per_token)

    def evicted(self, node: Node) -> None:
        # The clock never runs back: a newcomer starts level with the last to leave, so yesterday's
        # favourite cannot sit in the cache for ever. (3)
        self._clock = max(self._clock, self.rank_of(node))
