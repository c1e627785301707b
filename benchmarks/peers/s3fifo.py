"""S3-FIFO: a small queue that evicts most newcomers, a main queue for nodes used again, and ghosts.

Source: Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023). Adapted to a tree:
queues are measured in blocks; the tier's size is what it holds when a node must be evicted; a node with
children in the tier is set aside, and comes to the front when it becomes a leaf. A node evicted in part
keeps its place.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.ghosts import Ghosts
from peers.leaf_queue import LeafQueue, Queued
from ragcache_engine.knowledge.node import Node

SMALL_SHARE = 0.1
"""Above this share of the tier's blocks, evict from the small queue first."""

MOST_USES = 3


class S3FIFO(Queued):
    """Two queues in order of arrival, and ghosts; a node's uses are counted up to MOST_USES."""

    def __init__(self) -> None:
        self._small, self._main = LeafQueue(), LeafQueue()
        self._ghosts = Ghosts()
        self._uses: dict[Node, int] = {}
        self._evicting: Node | None = None

    def entered(self, node: Node) -> None:
        self._uses[node] = 0
        (self._main if node in self._ghosts else self._small).append(node)
        self._ghosts.discard(node)

    def used(self, node: Node) -> None:
        self._uses[node] = min(MOST_USES, self._uses[node] + 1)

    def became_evictable(self, node: Node) -> None:
        self._small.became_evictable(node)
        self._main.became_evictable(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        small, main = self._small, self._main
        victim = None
        if small.blocks > SMALL_SHARE * (small.blocks + main.blocks):
            victim = self._pick_from_small(evictable)
        return victim or self._pick_from_main(evictable) or self._pick_from_small(evictable)

    def evicted(self, node: Node) -> None:
        self._evicting = node

    def left(self, node: Node) -> None:
        del self._uses[node]
        if node not in self._small:
            self._main.remove(node)
            return
        if node is self._evicting:
            self._ghosts.add(node)
            self._ghosts.trim(self._main.blocks)
        self._small.remove(node)

    def _pick_from_small(self, evictable: Callable[[Node], bool]) -> Node | None:
        while (node := self._small.first(evictable)) is not None:
            if self._uses[node] <= 1:
                return node
            self._uses[node] = 0
            self._small.remove(node)
            self._main.append(node)
        return None

    def _pick_from_main(self, evictable: Callable[[Node], bool]) -> Node | None:
        while (node := self._main.first(evictable)) is not None:
            if not self._uses[node]:
                return node
            self._uses[node] -= 1
            self._main.move_to_end(node)
        return None
