"""Routing by documents: a prompt goes where its documents are.

A prompt's home is the replica that wants its leading document most, with tenant and system text before
it. The leading document decides, not the set of documents: tensors are reused exactly behind the same
beginning only, and a set of documents nearly never comes again where its first one does. A leading
document that is too much for one replica is on several. Among these the second document decides, and
so on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ragcache_engine.fleet.balance import BOUND, FOUND_COST, Balance
from ragcache_engine.fleet.holdings import Holdings
from ragcache_engine.fleet.path import Key, RoutingPath
from ragcache_engine.fleet.popularity import Popularity
from ragcache_engine.fleet.rendezvous import rank, weigh

SPARE_HOMES = 3
"""Where a home is overloaded, so many next homes are tried in their order, before any replica will do."""

WINDOW = 64
"""How many requests for each replica tell which documents are hot."""

MOST_RANKED = 50_000
"""Of so many keys the order of homes is remembered."""


class DocumentsRouting:
    """Chooses a replica by what a prompt begins with. See the module."""

    def __init__(self, replicas: Sequence[str] = (), capacity: int | None = None) -> None:
        """capacity: how much a replica can hold, in the unit of paths' sizes; None if not known."""
        self.holdings = Holdings()
        self.balance = Balance()
        self._capacity = capacity
        self._replicas: tuple[str, ...] = ()
        self._popularity = Popularity(WINDOW)
        self._ranked: OrderedDict[tuple[Key, int], list[str]] = OrderedDict()
        self.set_replicas(replicas)

    def set_replicas(self, replicas: Sequence[str]) -> None:
        """Route to these replicas from now on. What the others held is forgotten."""
        if tuple(replicas) == self._replicas:
            return
        for gone in set(self._replicas) - set(replicas):
            self.holdings.remove_replica(gone)
        for new in set(replicas) - set(self._replicas):
            self.holdings.add_replica(new, self._capacity)
        self._popularity.window = WINDOW * max(1, len(replicas))
        self._replicas = tuple(replicas)
        self._ranked.clear()
        self.balance.set_replicas(replicas)

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        """Return the replica for a prompt. in_flight: how many requests each replica has now.

        Changes nothing; `record` does. Raises ValueError without replicas.
        """
        if not self._replicas:
            raise ValueError("there is no replica to route to")
        candidates = self.candidates(path, in_flight)
        admitted = self.balance.admit(candidates, in_flight)
        return admitted or self.balance.least_loaded(self._replicas, in_flight)

    def record(self, path: RoutingPath, replica: str) -> None:
        """Note that a prompt goes to this replica."""
        self._popularity.count(path.keys)
        found = self.holdings.held_sizes(path).get(replica, 0)
        self.balance.record(replica, 1 - found / path.size if path.size else 1.0)
        self.holdings.add(replica, path)

    def candidates(self, path: RoutingPath, in_flight: Mapping[str, int]) -> list[str]:
        """Return the replicas at which the prompt may find something, the best one first."""
        homes = self._homes(path)
        if homes.are_equal:
            return sorted(
                homes.replicas, key=lambda one: (in_flight.get(one, 0), self.balance.late(one))
            )
        held = self.holdings.held_sizes(path)
        # What many prompts share says nothing about where this one should go.
        worth = {one: size for one, size in held.items() if size > homes.shared_size}
        # A hot document spreads over its homes, and is not drawn to others that have it by chance.
        others = [] if homes.is_hot else sorted(worth.keys() - set(homes.replicas))
        spares = self._rank(path.keys[_leading(path)], 1)[:SPARE_HOMES]
        ordered = sorted([*homes.replicas, *others], key=lambda one: -worth.get(one, 0))
        return list(dict.fromkeys([*ordered, *spares]))

    def _homes(self, path: RoutingPath) -> _Homes:
        """Return where a prompt belongs."""
        at = _leading(path)
        width = self._width(path.keys[at])
        head, tail = self._rank(path.keys[at], width)[:width], list[str]()
        is_hot = width > 1
        while width > 1:
            at += 1
            if at == len(path.keys):
                return _Homes([*head, *tail], path.size, is_hot, are_equal=True)
            key = path.keys[at]
            width = min(width, self._width(key))
            head.sort(key=lambda one: weigh(key, one), reverse=True)
            head, tail = head[:width], head[width:] + tail
        return _Homes([*head, *tail], sum(path.sizes[:at]), is_hot)

    def _width(self, key: Key) -> int:
        """Return on how many replicas a beginning belongs."""
        share = FOUND_COST * self._popularity.share(key)  # of the work, once it is held
        return max(1, ceil(share * len(self._replicas) / BOUND))

    def _rank(self, key: Key, width: int) -> list[str]:
        """Return the first homes of a key, and some to spare."""
        # A power of two, so that a share that moves a little asks for no other order.
        most = 1 << (width + SPARE_HOMES - 1).bit_length()
        found = self._ranked.get((key, most))
        if found is None:
            found = self._ranked[key, most] = rank(key, self._replicas, most)
            if len(self._ranked) > MOST_RANKED:
                self._ranked.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class _Homes:
    """Where a prompt belongs. replicas: the best one first.

    shared_size: how much of the prompt is before the part that tells these replicas apart.
    are_equal: whether nothing of the prompt does.
    """

    replicas: list[str]
    shared_size: int
    is_hot: bool
    are_equal: bool = False


def _leading(path: RoutingPath) -> int:
    """Return the place of the leading document, or of the system text if there is no document."""
    return min(1, len(path.keys) - 1)
