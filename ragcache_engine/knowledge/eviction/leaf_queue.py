"""A queue of a tier's nodes for policies that go by order alone: all that the tree asks of it is here.

Classic queues evict whatever stands in front. In a tree only leaves may go. A node that comes to the
front while it carries others, or is pinned, is set aside, and stands in front again as soon as the tree
says that it may be evicted; if it was used meanwhile, at the end. Every call costs O(1), amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ragcache_engine.knowledge.node import Node


class LeafQueue:
    """Nodes in the order in which they are to be looked at. blocks: of all of them, set aside or not."""

    def __init__(self) -> None:
        self.blocks = 0
        self._queue: OrderedDict[Node, None] = OrderedDict()
        self._set_aside: dict[Node, bool] = {}  # whether it was used since

    def __contains__(self, node: Node) -> bool:
        return node in self._queue or node in self._set_aside

    def __len__(self) -> int:
        return len(self._queue) + len(self._set_aside)

    def append(self, node: Node) -> None:
        self._queue[node] = None
        self.blocks += node.blocks

    def remove(self, node: Node) -> None:
        """Raises KeyError if it is not here."""
        if node in self._queue:
            del self._queue[node]
        else:
            del self._set_aside[node]
        self.blocks -= node.blocks

    def move_to_end(self, node: Node) -> None:
        if node in self._queue:
            self._queue.move_to_end(node)
        else:
            self._set_aside[node] = True

    def oldest(self) -> Node | None:
        """The first one, whether it may be evicted or not, but for those set aside."""
        return next(iter(self._queue), None)

    def first(self, evictable: Callable[[Node], bool]) -> Node | None:
        """The first one that may be evicted; None if there is none."""
        while self._queue:
            node = next(iter(self._queue))
            if evictable(node):
                return node
            del self._queue[node]
            self._set_aside[node] = False
        return None

    def became_evictable(self, node: Node) -> None:
        """It may be evicted now; it need not be in this queue."""
        used = self._set_aside.pop(node, None)
        if used is None:
            return
        self._queue[node] = None
        if not used:
            self._queue.move_to_end(node, last=False)
