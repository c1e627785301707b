"""LRU: the leaf unused for longest leaves first."""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.ranked import Ranked
from ragcache_engine.knowledge.node import Node


class LRU(Ranked):
    """Least recently used."""

    def rank(self, node: Node) -> float:
        return node.last_use
