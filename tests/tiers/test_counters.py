"""Counters are plain numbers: they cross a process boundary and are what they were."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.counters import (
    SCHEDULING_BUCKETS_S,
    BlocksByTier,
    Counters,
    TierCounters,
)


def test_counters_begin_at_nothing_with_a_place_for_each_tier():
    counters = Counters()
    assert counters.evicted == {tier.value: 0 for tier in Tier}
    assert sum(counters.scheduling) == counters.scheduling_s == counters.device_tokens == 0


def test_two_engines_count_for_themselves():
    first, second = Counters(), Counters()
    first.evicted["host"] += 1
    first.add_scheduling(1.0)
    assert second == Counters() != first


def test_counters_survive_the_way_to_another_process():
    counters = Counters(device_tokens=3, forgotten=2)
    counters.evicted["disk"] = 7
    counters.add_scheduling(3e-5)
    assert Counters.from_dict(json.loads(json.dumps(counters.as_dict()))) == counters


def test_what_was_told_does_not_change_with_what_is_counted_later():
    counters = Counters()
    told = counters.as_dict()
    counters.evicted["host"] += 1
    counters.add_scheduling(1.0)
    assert Counters.from_dict(told) == Counters()


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (SCHEDULING_BUCKETS_S[0], 0),
        (SCHEDULING_BUCKETS_S[0] * 1.01, 1),
        (SCHEDULING_BUCKETS_S[-1], len(SCHEDULING_BUCKETS_S) - 1),
        (99.0, len(SCHEDULING_BUCKETS_S)),
    ],
)
def test_a_request_falls_into_the_bucket_whose_bound_it_does_not_exceed(
    seconds: float, bucket: int
):
    counters = Counters()
    counters.add_scheduling(seconds)
    assert counters.scheduling[bucket] == sum(counters.scheduling) == 1
    assert counters.scheduling_s == seconds


def test_a_snapshot_says_all_that_was_counted_and_does_not_change():
    counters = Counters(device_tokens=3, scheduling_s=0.5)
    counters.evicted["host"] = 2
    told = counters.snapshot()
    counters.evicted["host"] += 1
    counters.add_scheduling(1.0)
    assert [field.name for field in fields(TierCounters)] == [f.name for f in fields(Counters)]
    assert told == TierCounters(device_tokens=3, scheduling_s=0.5, evicted=BlocksByTier(host=2))
    assert dict(told.evicted) == {"device": 0, "host": 2, "disk": 0}
    assert told.evicted[Tier.HOST] == 2
    assert told.scheduling == (0,) * (len(SCHEDULING_BUCKETS_S) + 1)
    assert Counters().snapshot() == TierCounters()
    assert len({told, TierCounters()}) == 2
    with pytest.raises(KeyError):
        told.evicted["tape"]
