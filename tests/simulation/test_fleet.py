"""The fleet's replay: the routing's worth shows in hits, and a single replica is the document cache."""

from __future__ import annotations

import pytest

from ragcache_engine.fleet import ROUTINGS
from ragcache_engine.knowledge import POLICIES, CostProfile
from ragcache_engine.simulation.fleet import FleetSizes, replay_fleet
from ragcache_engine.simulation.replay import replay
from ragcache_engine.simulation.traces import Trace, draw_zipf

DOCUMENTS = {f"d{number}": 160 for number in range(200)}
PAIRS = Trace(tuple((f"d{n}", f"d{(7 * n) % 200}") for n in range(200)), DOCUMENTS)
ASKED = draw_zipf(PAIRS, 3000, seed=2)


def fleet(routing: str, count: int = 4, **changes: float):
    sizes = FleetSizes(count, capacity_tokens=4000, system_tokens=16, **changes)  # type: ignore[arg-type]
    return replay_fleet(ASKED, sizes, routing, policy="lru", profile=CostProfile.default())


@pytest.mark.parametrize("routing", ROUTINGS)
def test_one_replica_finds_what_a_document_cache_finds(routing):
    alone = replay(ASKED, 4000, POLICIES["lru"], system_tokens=16)
    assert fleet(routing, 1).hit_rate == pytest.approx(alone.token_hit_rate, abs=1e-9)


def test_documents_routing_finds_more_than_random_and_loads_evenly():
    documents, by_chance = fleet("documents"), fleet("random")
    assert documents.hit_rate > 1.2 * by_chance.hit_rate
    assert documents.ttft_s < by_chance.ttft_s
    assert documents.imbalance < fleet("prefix").imbalance
    assert documents.imbalance < 1.5


@pytest.mark.slow
def test_where_replicas_go_some_hits_are_lost_and_later_found_again():
    whole, lost = fleet("documents"), fleet("documents", lost_share=0.1)
    assert lost.lost_replicas == 1
    assert lost.late_hit_rate < whole.late_hit_rate
    assert lost.late_hit_rate > fleet("random").late_hit_rate
    assert lost.requests == whole.requests == 3000


def test_a_store_saves_what_others_computed_and_random_routing_most_of_it():
    plain, shared = fleet("random"), fleet("random", store_tokens_per_s=100_000)
    assert plain.fetched_rate == 0
    assert shared.hit_rate == plain.hit_rate
    assert shared.fetched_rate > 0.2
    assert shared.ttft_s < plain.ttft_s
    assert fleet("documents", store_tokens_per_s=100_000).fetched_rate < shared.fetched_rate


def test_a_store_slower_than_computing_is_not_used():
    plain, shared = fleet("documents"), fleet("documents", store_tokens_per_s=1)
    assert shared.fetched_rate == 0
    assert shared.ttft_s == plain.ttft_s


def test_answers_slow_down_a_replica_that_has_many():
    quick, slow = fleet("prefix", 8), fleet("prefix", 8, answer_s=4.0)
    assert slow.hit_rate == pytest.approx(quick.hit_rate, abs=0.02)
    assert slow.ttft_s > 1.2 * quick.ttft_s
    assert fleet("least-tokens", 8, answer_s=4.0).ttft_s < slow.ttft_s


def test_the_last_replica_never_goes():
    assert fleet("documents", 1, lost_share=0.5).lost_replicas == 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures():
    assert fleet("two-choices") == fleet("two-choices")


def test_documents_routing_keeps_its_figures():
    # A refactoring that moves these numbers should be noticed.
    found = fleet("documents")
    assert (round(found.hit_rate, 4), round(found.imbalance, 4)) == (0.6672, 1.1413)
