"""SIEVE: a queue in order of arrival, and a hand that spares each node used since it last passed.

Source: Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web
caches" (NSDI 2024). Adapted to a tree: the hand sets aside nodes with children in the tier; when such a
node becomes a leaf, the hand comes to it next. A node evicted in part stays under the hand.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.leaf_queue import LeafQueue, Queued
from ragcache_engine.knowledge.node import Node


class SIEVE(Queued):
    """Lazy promotion, quick demotion: a use marks the node and moves nothing.

    The queue is kept in two parts: the nodes that the hand has yet to pass in this round, newcomers
    last, and the nodes that it has spared.
    """

    def __init__(self) -> None:
        self._ahead, self._spared = LeafQueue(), LeafQueue()
        self._marked: set[Node] = set()

    def entered(self, node: Node) -> None:
        self._ahead.append(node)

    def used(self, node: Node) -> None:
        self._marked.add(node)

    def became_evictable(self, node: Node) -> None:
        self._ahead.became_evictable(node)
        self._spared.became_evictable(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        rounds = 0
        # The second round finds no marks. If it finds no victim, a third would not either.
        while rounds < 3:
            node = self._ahead.first(evictable)
            if node is None:
                self._begin_round()
                rounds += 1
            elif node in self._marked:
                self._marked.remove(node)
                self._ahead.remove(node)
                self._spared.append(node)
            else:
                return node
        return None

    def left(self, node: Node) -> None:
        (self._ahead if node in self._ahead else self._spared).remove(node)
        self._marked.discard(node)

    def _begin_round(self) -> None:
        """Move the hand back to the oldest node. Nodes set aside stay so until they become evictable."""
        self._ahead, self._spared = self._spared, self._ahead
