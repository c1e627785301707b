"""What GDSF and PGDSF share: a clock that follows the priorities of evicted nodes.

Source: RAGCache, formula 3.
"""

from __future__ import annotations

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.node import Node


class Clocked(ByPriority):
    """Keeps a clock at the highest priority evicted so far. A subclass adds it to each new priority.

    The clock has the unit of the priorities.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0.0

    @property
    def clock(self) -> float:
        """The highest priority evicted so far."""
        return self._clock

    def evicted(self, node: Node) -> None:
        # The clock never runs back: a newcomer starts level with the last to leave, so yesterday's
        # favourite cannot sit in the cache for ever.
        self._clock = max(self._clock, self.priority_of(node))
