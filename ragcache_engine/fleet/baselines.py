"""What routing by documents is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ragcache_engine.fleet.holdings import Holdings
from ragcache_engine.fleet.path import RoutingPath
from ragcache_engine.fleet.rendezvous import weigh

LEAST_MATCH = 0.1
"""Below this share of a prompt, Ray's router takes no notice of a match."""


SMOOTHING, LEAST_TAKEN = 0.01, 0.1
"""How much the latest request counts in the mean of what requests take, and which part of its prompt one
takes at least."""


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


class LeastTokens:
    """Sends a request where the fewest tokens stand before its answer: those of the queue, and its own.

    Routers that follow what engines say they hold weigh so, such as llm-d's, Dynamo's and Ray's KV-aware
    one: the load of a replica, in tokens, less what it has of the prompt. Nothing draws a prompt that no
    replica knows to a place of its own, so hot documents spread with the load.
    """

    def __init__(self, replicas: Sequence[str] = (), capacity: int | None = None) -> None:
        self.holdings = Holdings()
        self._capacity = capacity
        self._replicas: tuple[str, ...] = ()
        self._mean_tokens = 0.0  # that a request takes
        self.set_replicas(replicas)

    def set_replicas(self, replicas: Sequence[str]) -> None:
        for gone in set(self._replicas) - set(replicas):
            self.holdings.remove_replica(gone)
        for new in set(replicas) - set(self._replicas):
            self.holdings.add_replica(new, self._capacity)
        self._replicas = tuple(replicas)

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        held = self.holdings.held_sizes(path)

        def tokens(one: str) -> tuple[float, float, bytes]:
            load = in_flight.get(one, 0) * self._mean_tokens
            weight = weigh(path.keys[-1], one)  # the same for equal prompts
            return load - held.get(one, 0), load, weight

        return min(self._replicas, key=tokens)

    def record(self, path: RoutingPath, replica: str) -> None:
        computed = path.size - self.holdings.held_sizes(path).get(replica, 0)
        # An answer takes a replica something, too, however much of its prompt is there.
        taken = max(computed, LEAST_TAKEN * path.size)
        self._mean_tokens += (taken - self._mean_tokens) * (SMOOTHING if self._mean_tokens else 1)
        self.holdings.add(replica, path)


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
