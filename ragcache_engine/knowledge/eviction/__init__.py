"""Eviction policies: which blocks leave a full tier. One policy a file.

POLICIES holds them by name; DEFAULT_POLICY is the name of the engine's default.
"""

from __future__ import annotations

from collections.abc import Callable

from ragcache_engine.knowledge.eviction.gdsf import GDSF
from ragcache_engine.knowledge.eviction.halflife import HalfLife
from ragcache_engine.knowledge.eviction.lfu import LFU
from ragcache_engine.knowledge.eviction.lru import LRU
from ragcache_engine.knowledge.eviction.pgdsf import PGDSF
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.eviction.popularity import Popularity

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LRU,
    "lfu": LFU,
    "gdsf": GDSF,
    "pgdsf": PGDSF,
    "halflife": HalfLife,
}

DEFAULT_POLICY = "halflife"


def policy_of_tiers(name: str) -> Callable[[], EvictionPolicy]:
    """Return a function that makes the policy of this name for each tier of one tree.

    The policies of one tree share their counts of the requests. Call this once for each tree.
    Raises KeyError for an unknown name.
    """
    if name != "halflife":
        return POLICIES[name]
    popularity = Popularity()
    return lambda: HalfLife(popularity=popularity)


__all__ = [
    "DEFAULT_POLICY",
    "GDSF",
    "LFU",
    "LRU",
    "PGDSF",
    "POLICIES",
    "EvictionPolicy",
    "HalfLife",
    "policy_of_tiers",
]
