"""ARC: a queue of nodes used once, and one of nodes used again; ghosts of both set their shares.

Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003). Adapted to a
tree: queues and target are measured in blocks; the tier's size is what it holds when a node leaves;
a node with children in the tier is set aside until it is a leaf. A node evicted in part keeps its place.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.ghosts import Ghosts
from peers.leaf_queue import LeafQueue, Queued
from ragcache_engine.knowledge.node import Node


class ARC(Queued):
    """Adaptive replacement: balances recency and frequency by which ghosts are used again."""

    def __init__(self) -> None:
        self._once, self._again = LeafQueue(), LeafQueue()
        self._once_ghosts, self._again_ghosts = Ghosts(), Ghosts()
        self._target = 0.0
        self._evicting: Node | None = None

    @property
    def target_blocks(self) -> float:
        """How many blocks the nodes used only once may take."""
        return self._target

    def seen(self, node: Node) -> None:
        once, again = self._once_ghosts, self._again_ghosts
        if node in once:
            step = node.blocks * max(1.0, again.blocks / once.blocks)
            self._target = min(self._target + step, float(self._once.blocks + self._again.blocks))
        elif node in again:
            step = node.blocks * max(1.0, once.blocks / again.blocks)
            self._target = max(self._target - step, 0.0)

    def entered(self, node: Node) -> None:
        known = node in self._once_ghosts or node in self._again_ghosts
        (self._again if known else self._once).append(node)
        self._once_ghosts.discard(node)
        self._again_ghosts.discard(node)

    def used(self, node: Node) -> None:
        if node in self._again:
            self._again.move_to_end(node)
        else:
            self._once.remove(node)
            self._again.append(node)

    def became_evictable(self, node: Node) -> None:
        self._once.became_evictable(node)
        self._again.became_evictable(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        first, other = self._once, self._again
        if first.blocks <= self._target:
            first, other = other, first
        return first.first(evictable) or other.first(evictable)

    def evicted(self, node: Node) -> None:
        self._evicting = node

    def left(self, node: Node) -> None:
        size = self._once.blocks + self._again.blocks
        once = node in self._once
        (self._once if once else self._again).remove(node)
        if node is not self._evicting:
            return  # dropped, but not to make room
        (self._once_ghosts if once else self._again_ghosts).add(node)
        self._once_ghosts.trim(size - self._once.blocks)
        self._again_ghosts.trim(
            2 * size - self._once.blocks - self._again.blocks - self._once_ghosts.blocks
        )
