"""Nodes that left a tier lately, as ARC and S3-FIFO remember them: the name alone, no blocks."""

from __future__ import annotations

from collections import OrderedDict

from ragcache_engine.knowledge.node import Node


class Ghosts:
    """The latest to leave, up to a number of blocks. blocks: what they had."""

    def __init__(self) -> None:
        self.blocks = 0
        # With the blocks it had: a node that is split later has fewer.
        self._queue: OrderedDict[Node, int] = OrderedDict()

    def __contains__(self, node: Node) -> bool:
        return node in self._queue

    def add(self, node: Node) -> None:
        self.discard(node)
        self._queue[node] = node.blocks
        self.blocks += node.blocks

    def discard(self, node: Node) -> None:
        self.blocks -= self._queue.pop(node, 0)

    def trim(self, blocks: int) -> None:
        """Forget the oldest until the rest had at most so many blocks."""
        while self.blocks > max(0, blocks):
            self.blocks -= self._queue.popitem(last=False)[1]
