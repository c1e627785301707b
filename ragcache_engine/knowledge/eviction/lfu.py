"""LFU: the leaf used least often leaves first; of equals, the one ranked first.

Uses are the tree's: those within its frequency window, which survive eviction, so a document that
comes back comes back with its past. Fitted to a tree: only leaves of the tier are ranked.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.node import Node


class LFU(ByPriority):
    """Least frequently used."""

    def compute_priority(self, node: Node) -> float:
        return node.uses
