"""What each replica holds, as far as it is known: what was sent there, corrected by what it says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ragcache_engine.fleet.path import Key, RoutingPath

MOST_KEYS = 100_000
"""So many keys of a replica are remembered, those longest unused leave first. About 20 MB a replica."""

NOBODY: frozenset[str] = frozenset()


class Holdings:
    """Which replica holds which beginnings. Each replica's keys age by use, as its cache does."""

    def __init__(self) -> None:
        self._keys: dict[str, OrderedDict[Key, int]] = {}
        self._sizes: dict[str, int] = {}
        self._capacities: dict[str, int | None] = {}
        self._holders: dict[Key, set[str]] = {}

    def add_replica(self, replica: str, capacity: int | None = None) -> None:
        """Begin to remember a replica. capacity: how much it can hold, in the unit of paths' sizes."""
        self._keys.setdefault(replica, OrderedDict())
        self._sizes.setdefault(replica, 0)
        self._capacities[replica] = capacity

    def remove_replica(self, replica: str) -> None:
        """Forget a replica that is gone, with all it held."""
        for key in self._keys.pop(replica, ()):
            self._drop_holder(key, replica)
        self._sizes.pop(replica, None)
        self._capacities.pop(replica, None)

    def add(self, replica: str, path: RoutingPath) -> None:
        """Note that a replica computes this path now, and holds it from then on."""
        kept = self._keys.get(replica)
        if kept is None:
            return
        for key, size in zip(path.keys, path.sizes, strict=True):
            if key not in kept:
                self._sizes[replica] += size
                self._holders.setdefault(key, set()).add(replica)
            kept[key] = size
        # The end of a path is evicted before its beginning.
        for key in reversed(path.keys):
            kept.move_to_end(key)
        capacity = self._capacities[replica]
        while kept and (
            len(kept) > MOST_KEYS or (capacity is not None and self._sizes[replica] > capacity)
        ):
            self._drop(replica, next(iter(kept)))

    def correct(self, replica: str, asked: Iterable[Key], held: AbstractSet[Key]) -> None:
        """Drop what a replica was asked about and does not hold."""
        for key in asked:
            if key not in held:
                self._drop(replica, key)

    def holders(self, key: Key) -> AbstractSet[str]:
        """Return the replicas that hold this beginning."""
        return self._holders.get(key, NOBODY)

    def held_sizes(self, path: RoutingPath) -> Mapping[str, int]:
        """Return how much of a path each replica holds, for those that hold any of it."""
        sizes: dict[str, int] = {}
        reached = 0
        among: AbstractSet[str] | None = None
        for key, size in zip(path.keys, path.sizes, strict=True):
            here = self.holders(key)
            among = here if among is None else among & here
            if not among:
                break
            reached += size
            for replica in among:
                sizes[replica] = reached
        return sizes

    def keys(self, replica: str) -> Sequence[Key]:
        """Return the keys that a replica is thought to hold, the longest unused first."""
        return list(self._keys.get(replica, ()))

    def _drop(self, replica: str, key: Key) -> None:
        size = self._keys[replica].pop(key, None) if replica in self._keys else None
        if size is not None:
            self._sizes[replica] -= size
            self._drop_holder(key, replica)

    def _drop_holder(self, key: Key, replica: str) -> None:
        here = self._holders.get(key)
        if here is not None:
            here.discard(replica)
            if not here:
                del self._holders[key]
