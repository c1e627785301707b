"""GDSF: the classic policy that PGDSF derives from, with costs proportional to sizes.

Cost over size is then the same for every document, so a document's priority depends only on how often
it was used, and when. Adapted to a tree: only leaves of the tier are evicted, block by block.
Sources: Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching
policy" (HP Labs, 1998); RAGCache, §7.4, for the cost.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.clocked import Clocked
from ragcache_engine.knowledge.node import Node


def priority(clock: float, uses: int) -> float:
    """Return clock + frequency x cost / size, where cost / size is 1."""
    return clock + uses


class GDSF(Clocked):
    """Greedy-Dual-Size-Frequency, as in the paper's baseline."""

    def compute_priority(self, node: Node) -> float:
        return priority(self._clock, node.uses)
