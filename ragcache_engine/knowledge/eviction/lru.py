"""LRU: evicts the leaf that has been unused for longest."""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.node import Node


class LRU(ByPriority):
    """Evicts the least recently used leaf."""

    def compute_priority(self, node: Node) -> float:
        return node.last_use
