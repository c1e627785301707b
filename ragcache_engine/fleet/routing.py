"""The verbs that all routings have, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ragcache_engine.fleet.baselines import LeastTokens, LongestPrefix, RandomRouting, TwoChoices
from ragcache_engine.fleet.documents import DocumentsRouting
from ragcache_engine.fleet.path import RoutingPath

ROUTINGS = ("documents", "random", "two-choices", "prefix", "least-tokens")
"""The names of the routings; the first one is the default."""


class Routing(Protocol):
    """Decides which replica gets a prompt. For one thread."""

    def set_replicas(self, replicas: Sequence[str]) -> None:
        """Route to these replicas from now on."""

    def choose(self, path: RoutingPath, in_flight: Mapping[str, int]) -> str:
        """Return the replica for a prompt. in_flight: how many requests each replica has now."""

    def record(self, path: RoutingPath, replica: str) -> None:
        """Note that a prompt goes to this replica."""


def make_routing(
    name: str, replicas: Sequence[str] = (), *, capacity: int | None = None, seed: int = 0
) -> Routing:
    """Make the routing of this name. capacity: how much a replica holds, in the unit of paths' sizes.

    Raises ValueError for an unknown name.
    """
    match name:
        case "documents":
            return DocumentsRouting(replicas, capacity)
        case "random":
            return RandomRouting(replicas, seed)
        case "two-choices":
            return TwoChoices(replicas, seed)
        case "least-tokens":
            return LeastTokens(replicas, capacity)
        case "prefix":
            return LongestPrefix(replicas, seed)
    raise ValueError(f"a routing is one of {', '.join(ROUTINGS)}, not {name!r}")
