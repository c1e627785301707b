"""On flat traces of unit size, where a tree is no more than a cache, against a simulator others trust.

libCacheSim: https://github.com/1a1a11a/libCacheSim
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ragcache_engine.knowledge import DocumentCache, EvictionPolicy, Node, Segment
from ragcache_engine.knowledge.eviction import GDSF, LRU, PGDSF
from ragcache_engine.knowledge.eviction.gdsf import priority
from ragcache_engine.simulation.traces import zipf_weights

libcachesim = pytest.importorskip("libcachesim", reason="libcachesim has no wheel for this Python")

OBJECTS = 500
REQUESTS = 8_000


def flat_trace(seed: int) -> list[int]:
    """Objects by number from 1, with Zipf weights."""
    numbers = range(1, OBJECTS + 1)
    return Random(seed).choices(numbers, zipf_weights(OBJECTS), k=REQUESTS)


def hits_of_cache(
    policy: Callable[[], EvictionPolicy], objects: list[int], capacity: int
) -> list[bool]:
    cache = DocumentCache(capacity, policy, block_tokens=1)
    hits = []
    for name in objects:
        match = cache.match([Segment(str(name), 1)])
        hits.append(match.whole == 1)
        cache.admit(cache.use(match, prefill_s=0.001))
    return hits


def hits_of(simulator: Any, objects: list[int]) -> list[bool]:
    return [simulator.get(libcachesim.Request(obj_id=name, obj_size=1)) for name in objects]


@pytest.mark.parametrize("capacity", [1, 10, 50, 200])
@pytest.mark.parametrize("seed", [1, 2])
def test_lru_is_theirs_access_by_access(seed: int, capacity: int):
    objects = flat_trace(seed)
    theirs = hits_of(libcachesim.LRU(capacity), objects)
    assert hits_of_cache(LRU, objects, capacity) == theirs


class UsesEndWithEviction(GDSF):
    """Theirs counts from one again when an object returns; ours, as the paper's, goes on counting."""

    def __init__(self) -> None:
        super().__init__()
        self._uses: Counter[Node] = Counter()

    def compute_priority(self, node: Node) -> float:
        self._uses[node] += 1
        return priority(self.clock, self._uses[node])

    def left(self, node: Node) -> None:
        super().left(node)
        del self._uses[node]


@pytest.mark.parametrize("capacity", [10, 50, 200])
@pytest.mark.parametrize("seed", [1, 2])
def test_gdsf_hits_as_often_as_theirs_within_a_point(seed: int, capacity: int):
    objects = flat_trace(seed)
    theirs = sum(hits_of(libcachesim.GDSF(capacity), objects)) / REQUESTS
    ours = sum(hits_of_cache(UsesEndWithEviction, objects, capacity)) / REQUESTS
    assert ours == pytest.approx(theirs, abs=0.01)


@pytest.mark.parametrize("capacity", [10, 50, 200])
@pytest.mark.parametrize("policy", [GDSF, PGDSF])
def test_uses_that_survive_eviction_cost_gdsf_no_hits(
    policy: Callable[[], EvictionPolicy], capacity: int
):
    objects = flat_trace(3)
    theirs = sum(hits_of(libcachesim.GDSF(capacity), objects)) / REQUESTS
    assert sum(hits_of_cache(policy, objects, capacity)) / REQUESTS > theirs - 0.01
