"""Looks over the knowledge tree for observers, a slice at a time, so that no request waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from heapq import heappush, heappushpop

from ragcache_engine.knowledge import Node
from ragcache_engine.tiers.bloom_filter import BloomFilter
from ragcache_engine.tiers.counters import BlocksByTier
from ragcache_engine.tiers.tree_snapshot import MOST_DOCUMENTS, DocumentBlocks

SLICE_NODES = 500
"""So many nodes, or documents, one slice visits: half a millisecond, or thrice that with a filter."""

IDLE_SLICES = 20
"""So many slices at once while no request waits or runs."""

_Sums = list[int]
"""Of one document: blocks by tier, contexts, uses."""


class TreeWatch:
    """Adds up the blocks of each document, over as many slices as the tree is large.

    nodes: returns all nodes of the tree as of now. clock: returns seconds.
    documents, others, other_blocks, unnamed_blocks: as in TreeSnapshot, as of the last complete pass.
    bloom_filter: as in TreeSnapshot; None while `documents` has them all.
    """

    def __init__(
        self,
        nodes: Callable[[], list[Node]],
        *,
        slice_nodes: int = SLICE_NODES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._list_nodes = nodes
        self._clock = clock
        self._slice_nodes = slice_nodes
        self._pass: Iterator[None] | None = None
        self.documents: tuple[DocumentBlocks, ...] = ()
        self.others = 0
        self.other_blocks = self.unnamed_blocks = BlocksByTier()
        self.bloom_filter: BloomFilter | None = None
        self._seen_at: float | None = None  # when the last complete pass began

    @property
    def age_s(self) -> float | None:
        """How many seconds ago the last complete pass began; None before there was one."""
        return None if self._seen_at is None else self._clock() - self._seen_at

    @property
    def is_looking(self) -> bool:
        """Whether a pass over the tree has begun and is not complete."""
        return self._pass is not None

    def look(self, slices: int = 1) -> None:
        """Begin a pass over the tree, unless one is under way, and visit this many slices of it."""
        if self._pass is None:
            self._pass = self._look_over()
        for _ in range(slices):
            self.advance()

    def advance(self) -> None:
        """Visit the next slice of the pass, if one is under way."""
        if self._pass is not None and next(self._pass, self) is self:
            self._pass = None

    def _look_over(self) -> Iterator[None]:
        """Visit all nodes and then all documents. Yields after each slice."""
        begun_at = self._clock()
        sums: dict[tuple[str, ...], _Sums] = {}
        for at, node in enumerate(self._list_nodes(), start=1):
            if node.parent is not None and any(node.resident):  # else it went since the pass began
                _add(node, sums)
            if not at % self._slice_nodes:
                yield
        unnamed = sums.pop((), [0] * 5)
        largest: list[tuple[int, tuple[str, ...], _Sums]] = []
        others = [0] * 5
        bloom_filter = BloomFilter(len(sums)) if len(sums) > MOST_DOCUMENTS else None
        for at, (names, of_document) in enumerate(sums.items(), start=1):
            item = (sum(of_document[:3]), names, of_document)
            if len(largest) < MOST_DOCUMENTS:
                heappush(largest, item)
            else:
                _, _, least = heappushpop(largest, item)
                others = [one + more for one, more in zip(others, least, strict=True)]
            if bloom_filter is not None and (of_document[0] or of_document[1]):
                for name in names:
                    bloom_filter.add(name)
            if not at % self._slice_nodes:
                yield
        self._seen_at = begun_at
        self.others, self.other_blocks = len(sums) - len(largest), BlocksByTier(*others[:3])
        self.unnamed_blocks, self.bloom_filter = BlocksByTier(*unnamed[:3]), bloom_filter
        self.documents = tuple(
            DocumentBlocks(names, contexts, uses, BlocksByTier(*blocks))
            for _, names, (*blocks, contexts, uses) in sorted(largest, reverse=True)
        )


def _add(node: Node, sums: dict[tuple[str, ...], _Sums]) -> None:
    device, host, disk = node.resident
    of_document = sums.get(node.documents)
    if of_document is None:
        of_document = sums[node.documents] = [0] * 5
    above = device if device > host else host
    of_document[0] += device
    of_document[1] += above - device
    if disk > above:
        of_document[2] += disk - above
    of_document[3] += 1
    of_document[4] += node.uses


def add_up(blocks: Iterable[BlocksByTier]) -> BlocksByTier:
    """Add up blocks, tier by tier."""
    device = host = disk = 0
    for each in blocks:
        device, host, disk = device + each.device, host + each.host, disk + each.disk
    return BlocksByTier(device, host, disk)
