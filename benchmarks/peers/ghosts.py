"""Ghosts: nodes that a tier evicted lately. ARC and S3-FIFO remember them without their blocks."""

from __future__ import annotations

from collections import OrderedDict

from ragcache_engine.knowledge.node import Node


class Ghosts:
    """Evicted nodes, the oldest first. blocks: how many blocks all of them had."""

    def __init__(self) -> None:
        self.blocks = 0
        # Each node with the blocks it had when it left: a node that is split later has fewer.
        self._queue: OrderedDict[Node, int] = OrderedDict()

    def __contains__(self, node: Node) -> bool:
        return node in self._queue

    def add(self, node: Node) -> None:
        """Remember a node that was evicted just now."""
        self.discard(node)
        self._queue[node] = node.blocks
        self.blocks += node.blocks

    def discard(self, node: Node) -> None:
        """Forget a node. Nothing happens if it is not remembered."""
        self.blocks -= self._queue.pop(node, 0)

    def trim(self, blocks: int) -> None:
        """Forget the oldest nodes until the others had at most this many blocks in all."""
        while self.blocks > max(0, blocks):
            self.blocks -= self._queue.popitem(last=False)[1]
