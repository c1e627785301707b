"""The base of policies that give each node a priority, a number, and evict the lowest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from ragcache_engine.knowledge.node import Node

Entry = tuple[float, int, Node]
"""A node's priority, a number that decides between equal priorities, and the node.

The number grows with each priority that is set, so that of equals the one set first is evicted first.
"""


LEFT_BEHIND = 1024
"""So many entries of nodes that left may stay in a heap, and twice as many as it has nodes."""

RENEWED_AT_ONCE = 8
"""How many priorities are computed again at a time after the scale of priorities has changed."""


class ByPriority(ABC):
    """Evicts the node with the lowest priority; of equals, the one whose priority was set first.

    A subclass computes the priorities. The heap holds one entry for each node that may be evictable. A
    use sets a new priority and leaves the entry in the heap as it is: priorities rise, so the old entry
    comes to the top too early rather than too late. There it is replaced by the new one, or dropped if
    the node cannot be evicted; `became_evictable` enters the node again. A priority that falls is
    entered at once, and the entry it supersedes is skipped. So a use costs no more than computing the
    priority, and everything else O(log n), amortised.

    After `change_scale` old and new priorities cannot be compared. The old heap is put aside, and each
    later use or eviction computes some of its priorities again, so that none takes long however many
    nodes there are. Victims are chosen by new priorities only.
    """

    def __init__(self) -> None:
        self._entries: dict[Node, Entry] = {}  # with the latest priority
        self._queued: dict[Node, Entry] = {}  # the valid entry in the heap
        self._heap: list[Entry] = []
        self._outdated: list[list[Entry]] = []  # heaps of older scales
        self._numbers = count()
        self._first_of_scale = 0

    @abstractmethod
    def compute_priority(self, node: Node) -> float:
        """Return the node's priority now, after a use. Nodes with a higher one stay longer."""

    def seen(self, node: Node) -> None:  # noqa: B027  (most count cached nodes only)
        pass

    def entered(self, node: Node) -> None:
        self.used(node)

    def used(self, node: Node) -> None:
        # Not self._renew: this runs for each document of each request.
        entry = self._entries[node] = (self.compute_priority(node), next(self._numbers), node)
        queued = self._queued.get(node)
        if queued is not None and (queued[1] < self._first_of_scale or entry[0] < queued[0]):
            self._queue(entry)

    def first_use_completed(self, node: Node) -> None:
        self.used(node)

    def became_evictable(self, node: Node) -> None:
        if node not in self._queued:
            self._queue(self._latest(node))

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        if self._outdated:
            self._renew_some(from_lowest=True)
        while (lowest := self._lowest(evictable)) is None and self._outdated:
            self._renew_some(from_lowest=True)
        return lowest

    def _lowest(self, evictable: Callable[[Node], bool]) -> Node | None:
        heap, queued, entries = self._heap, self._queued, self._entries
        while heap:
            entry = heap[0]
            node = entry[2]
            if queued.get(node) is not entry:
                heappop(heap)  # superseded
                continue
            latest = entries.get(node)
            if latest is None or not evictable(node):
                heappop(heap)
                del queued[node]
            elif latest is entry:
                return node
            else:
                queued[node] = latest
                heapreplace(heap, latest)
        return None

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        return True

    def evicted(self, node: Node) -> None:  # noqa: B027  (most have nothing to note)
        pass

    def left(self, node: Node) -> None:
        del self._entries[node]
        if len(self._heap) > 2 * len(self._entries) + LEFT_BEHIND:
            self._sweep()

    def _sweep(self) -> None:
        """Drop the entries of nodes that left: where nobody asks for a victim, nothing else does."""
        self._queued = {one: entry for one, entry in self._queued.items() if one in self._entries}
        self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) is entry]
        heapify(self._heap)

    def priority_of(self, node: Node) -> float:
        """Return the priority set at the node's latest use. KeyError if no block of it is in the tier."""
        return self._latest(node)[0]

    def change_scale(self) -> None:
        """Compute every node's priority again, some at each later call: their scale has changed."""
        if self._heap:
            self._outdated.append(self._heap)
            self._heap = []
        self._first_of_scale = next(self._numbers)

    def _renew(self, node: Node) -> Entry:
        entry = self._entries[node] = (self.compute_priority(node), next(self._numbers), node)
        return entry

    def _latest(self, node: Node) -> Entry:
        """Return the node's entry, in today's scale."""
        entry = self._entries[node]
        return entry if entry[1] >= self._first_of_scale else self._renew(node)

    def _renew_some(self, *, from_lowest: bool) -> None:
        """Enter some nodes of the oldest heap anew. from_lowest: those that had the lowest priorities;
        else some of the higher ones, which takes less time.
        """
        for _ in range(RENEWED_AT_ONCE):
            if not self._outdated:
                return
            heap = self._outdated[0]
            entry = heappop(heap) if from_lowest else heap.pop()
            if not heap:
                del self._outdated[0]
            node = entry[2]
            if self._queued.get(node) is entry:  # else it was entered anew
                if node in self._entries:
                    self._queue(self._latest(node))
                else:
                    del self._queued[node]

    def _queue(self, entry: Entry) -> None:
        self._queued[entry[2]] = entry
        heappush(self._heap, entry)
