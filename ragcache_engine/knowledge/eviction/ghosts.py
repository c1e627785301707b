"""Nodes that left a tier lately, as ARC and S3-FIFO remember them: the name alone, no blocks."""

from __future__ import annotations

from collections import OrderedDict

from ragcache_engine.knowledge.node import Node


class Ghosts:
    """The latest to leave, up to a number of blocks. blocks: what they had."""

    def __init__(self) -> None:
        self.blocks = 0
        self._line: OrderedDict[Node, None] = OrderedDict()

    def __contains__(self, node: Node) -> bool:
        return node in self._line

    def add(self, node: Node) -> None:
        self.discard(node)
        self._line[node] = None
        self.blocks += node.blocks

    def discard(self, node: Node) -> None:
        if node in self._line:
            del self._line[node]
            self.blocks -= node.blocks

    def trim(self, blocks: int) -> None:
        """Forget the oldest until the rest had at most so many blocks."""
        while self.blocks > max(0, blocks):
            node, _ = self._line.popitem(last=False)
            self.blocks -= node.blocks
