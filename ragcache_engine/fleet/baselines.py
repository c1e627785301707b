"""What routing by documents is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ragcache_engine.fleet.holdings import Holdings
from ragcache_engine.fleet.path import RoutingPath

LEAST_MATCH = 0.1
"""Below this share of a prompt, Ray's router takes no notice of a match."""


class RandomRouting:
    """Sends every request to some replica."""

    def __init__(self, replicas: Sequence[str] = (), seed: int = 0) -> None:
        self._replicas = tuple(replicas)
        self._random = Random(seed)

    def set_replicas(self, replicas: Sequence[str]) -> None:
        self._replicas = tuple(replicas)

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        return self._random.choice(self._replicas)

    def record(self, path: RoutingPath, replica: str) -> None:
        """Remember nothing."""


class TwoChoices(RandomRouting):
    """Sends every request to the idler of two replicas that it draws. Ray Serve does so by default."""

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        drawn = self._random.sample(self._replicas, min(2, len(self._replicas)))
        return min(drawn, key=lambda one: in_flight.get(one, 0))


class LongestPrefix:
    """Sends a request where the longest beginning of it was sent before, whatever the load there.

    This is Ray's PrefixCacheAffinityRouter with its defaults: it never looks at loads, forgets nothing,
    and sends what it does not know to the replica with the fewest characters. Parts stand for characters
    here. It draws two of several replicas with equal matches, and takes the idler one.
    """

    def __init__(self, replicas: Sequence[str] = (), seed: int = 0) -> None:
        self._random = Random(seed)
        self._holdings = Holdings()
        self._characters: dict[str, int] = {}
        self.set_replicas(replicas)

    def set_replicas(self, replicas: Sequence[str]) -> None:
        for gone in set(self._characters) - set(replicas):
            self._holdings.remove_replica(gone)
        for replica in replicas:
            self._holdings.add_replica(replica)
        self._characters = {one: self._characters.get(one, 0) for one in replicas}

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        held = self._holdings.held_sizes(path)
        most = max(held.values(), default=0)
        if most < LEAST_MATCH * path.size or not most:
            least = min(self._characters.values())
            best = [one for one, count in self._characters.items() if count == least]
        else:
            best = [one for one, size in held.items() if size == most]
        drawn = self._random.sample(sorted(best), min(2, len(best)))
        return min(drawn, key=lambda one: in_flight.get(one, 0))

    def record(self, path: RoutingPath, replica: str) -> None:
        if replica not in self._characters:
            return  # it has gone since it was chosen
        known = self._holdings.held_sizes(path).get(replica, 0)
        self._characters[replica] += path.size - known
        self._holdings.add(replica, path)
