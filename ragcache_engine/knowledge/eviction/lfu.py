"""LFU: evicts the leaf used least often; of equals, the one whose priority was set first.

The tree counts the uses, within its frequency window. Eviction does not reset them, so a document that
returns to the cache keeps its count. Adapted to a tree: only leaves of the tier are evicted.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.node import Node


class LFU(ByPriority):
    """Evicts the least frequently used leaf."""

    def compute_priority(self, node: Node) -> float:
        return node.uses
