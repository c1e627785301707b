"""The blocks that the knowledge tree tells its owner to free."""

from __future__ import annotations

from typing import NamedTuple

from ragcache_engine.knowledge.node import Node
from ragcache_engine.knowledge.tier import Tier


class FreedBlocks(NamedTuple):
    """Blocks [start, end) of one node that one tier no longer keeps; at least one block.

    The tree has already counted these blocks as gone. Its owner frees the memory, the slots or the
    files.
    """

    node: Node
    tier: Tier
    start: int
    end: int

    @property
    def blocks(self) -> int:
        """How many blocks the tier frees."""
        return self.end - self.start
