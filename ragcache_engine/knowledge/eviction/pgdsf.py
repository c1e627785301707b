"""PGDSF: evicts the leaf that is cheapest to compute again, weighted by how often and lately it was used.

Units: costs, priorities and the clock are seconds per token. Each tier has a policy, and so a clock, of
its own. Source: RAGCache, §5.1, formulas 2 to 4 and Algorithm 1.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.clocked import Clocked
from ragcache_engine.knowledge.node import Node


def priority(clock: float, uses: int, cost_s_per_token: float) -> float:
    """Return the priority by formula 2, with formula 4 for cost over size."""
    return clock + uses * cost_s_per_token


class PGDSF(Clocked):
    """The paper's policy, exactly as it describes it."""

    def compute_priority(self, node: Node) -> float:
        return priority(self._clock, node.uses, node.cost_s_per_token)
