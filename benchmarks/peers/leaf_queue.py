"""A queue of a tier's nodes that evicts only leaves, for policies that go by the order of nodes alone.

A classic queue evicts whatever is in front. In a tree only leaves may be evicted. A node that reaches
the front while it is pinned or has children in the tier is set aside. As soon as the tree says that the
node can be evicted, the node returns to the front, or to the end if it was used meanwhile. Every call
costs O(1), amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ragcache_engine.knowledge.node import Node


class LeafQueue:
    """Nodes in order of eviction. blocks: how many blocks they have in all, set aside or not."""

    def __init__(self) -> None:
        self.blocks = 0
        self._queue: OrderedDict[Node, None] = OrderedDict()
        self._set_aside: dict[Node, bool] = {}  # whether it was used since then

    def __contains__(self, node: Node) -> bool:
        return node in self._queue or node in self._set_aside

    def __len__(self) -> int:
        return len(self._queue) + len(self._set_aside)

    def append(self, node: Node) -> None:
        """Add a node at the end."""
        self._queue[node] = None
        self.blocks += node.blocks

    def remove(self, node: Node) -> None:
        """Take a node out of the queue. Raises KeyError if it is not in the queue."""
        if node in self._queue:
            del self._queue[node]
        else:
            del self._set_aside[node]
        self.blocks -= node.blocks

    def move_to_end(self, node: Node) -> None:
        """Move a node to the end; one that is set aside will return to the end."""
        if node in self._queue:
            self._queue.move_to_end(node)
        else:
            self._set_aside[node] = True

    def oldest(self) -> Node | None:
        """Return the first node that is not set aside, evictable or not; None if there is none."""
        return next(iter(self._queue), None)

    def first(self, evictable: Callable[[Node], bool]) -> Node | None:
        """Return the first node that may be evicted, or None; set aside the nodes before it."""
        while self._queue:
            node = next(iter(self._queue))
            if evictable(node):
                return node
            del self._queue[node]
            self._set_aside[node] = False
        return None

    def became_evictable(self, node: Node) -> None:
        """Put a node that was set aside back in its place; do nothing for any other node."""
        used = self._set_aside.pop(node, None)
        if used is None:
            return
        self._queue[node] = None
        if not used:
            self._queue.move_to_end(node, last=False)


class Queued:
    """The base of such policies. It admits every newcomer, and takes no note of the other events."""

    def seen(self, node: Node) -> None:
        pass

    def first_use_completed(self, node: Node) -> None:
        pass

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        return True

    def evicted(self, node: Node) -> None:
        pass
