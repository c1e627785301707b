"""Who leaves a full tier. One policy a file; POLICIES names them all."""

from __future__ import annotations

from collections.abc import Callable

from ragcache_engine.knowledge.eviction.lru import LRU
from ragcache_engine.knowledge.eviction.pgdsf import PGDSF
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LRU,
    "pgdsf": PGDSF,
}

__all__ = ["LRU", "PGDSF", "POLICIES", "EvictionPolicy"]
