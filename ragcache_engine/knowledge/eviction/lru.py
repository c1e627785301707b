"""LRU: the leaf unused for longest leaves first."""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.node import Node


class LRU(ByPriority):
    """Least recently used."""

    def compute_priority(self, node: Node) -> float:
        return node.last_use
