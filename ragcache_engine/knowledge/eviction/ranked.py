"""Policies that give each node a number and evict the lowest: all but the number is written here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from ragcache_engine.knowledge.node import Node

SLACK = 64
"""Outdated entries the heap may hold beyond one for each node, before it is swept."""


class Ranked(ABC):
    """Evicts the lowest rank; of equal ranks, the one ranked first.

    The heap holds each evictable node with its rank, and entries that have gone out of date, which
    are passed over when they surface. So every call costs O(log n), amortised.
    """

    def __init__(self) -> None:
        self._rank: dict[Node, float] = {}
        self._heap: list[tuple[float, int, Node]] = []
        self._order = count()

    @abstractmethod
    def rank(self, node: Node) -> float:
        """The node's worth now, after a use. Higher stays longer."""

    def seen(self, node: Node) -> None:  # noqa: B027  (most go by the nodes they hold)
        pass

    def entered(self, node: Node) -> None:
        self._rank[node] = self.rank(node)

    def used(self, node: Node) -> None:
        self._rank[node] = self.rank(node)
        self._push(node)

    def exposed(self, node: Node) -> None:
        self._push(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        heap, ranks = self._heap, self._rank
        while heap:
            rank, _, node = heap[0]
            if ranks.get(node) == rank and evictable(node):
                return node
            heappop(heap)  # it comes back when it is exposed again
        return None

    def prefers(self, newcomer: Node, victim: Node) -> bool:
        return True

    def evicted(self, node: Node) -> None:  # noqa: B027  (most have nothing to note)
        pass

    def left(self, node: Node) -> None:
        del self._rank[node]

    def rank_of(self, node: Node) -> float:
        """The rank it was given at its last use. KeyError if it has no blocks in the tier."""
        return self._rank[node]

    def rank_anew(self) -> None:
        """Give every node its rank again, for when ranks are taken on another scale. O(n)."""
        ranks = self._rank = {node: self.rank(node) for node in self._rank}
        orders: dict[Node, int] = {}
        for _, order, node in self._heap:
            if node in ranks:
                orders[node] = min(order, orders.get(node, order))
        self._heap = [(ranks[node], order, node) for node, order in orders.items()]
        heapify(self._heap)

    def _push(self, node: Node) -> None:
        heappush(self._heap, (self._rank[node], next(self._order), node))
        if len(self._heap) > 2 * len(self._rank) + SLACK:
            self._sweep()

    def _sweep(self) -> None:
        latest: dict[Node, tuple[float, int, Node]] = {}
        for entry in sorted(self._heap, key=lambda entry: entry[1]):
            if self._rank.get(entry[2]) == entry[0]:
                latest.setdefault(entry[2], entry)
        self._heap = list(latest.values())
        heapify(self._heap)
