"""GDSF: the classic policy PGDSF was made from, with costs proportional to sizes.

Cost over size is then the same for every document, so what counts is how often it was used and when.
Fitted to a tree: only leaves of the tier are ranked, and a node leaves block by block.
Sources: Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy" (HP Labs, 1998); RAGCache, §7.4, for the cost.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.clocked import Clocked
from ragcache_engine.knowledge.node import Node


def priority(clock: float, uses: int) -> float:
    """The clock plus frequency x cost / size, where cost / size is one."""
    return clock + uses


class GDSF(Clocked):
    """Greedy-Dual-Size-Frequency as the paper's baseline."""

    def compute_priority(self, node: Node) -> float:
        return priority(self._clock, node.uses)
