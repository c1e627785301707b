"""What happened between observations: ratios by tier, evictions, and starts anew."""

from __future__ import annotations

import pytest

from ragcache_engine.dashboard import History, Observation, prompt_tokens
from ragcache_engine.tiers.counters import BlocksByTier, TierCounters


def seen(at: float, ended: int = 1, approximate: int = 0, **counts: int) -> Observation:
    evicted = BlocksByTier(device=counts.pop("evicted", 0))
    tokens = {f"{source}_tokens": tokens for source, tokens in counts.items()}
    counters = TierCounters(ended=ended, evicted=evicted, **tokens)  # type: ignore[arg-type]
    return Observation(at, counters, approximate_tokens=approximate)


def test_an_interval_says_what_share_each_tier_gave():
    history = History()
    history.add(seen(10, device=100, computed=100, evicted=3))
    history.add(seen(12, 2, device=130, host=20, computed=150, evicted=10))
    (interval,) = history.intervals()
    assert (interval.at, interval.seconds, interval.prompt_tokens) == (12, 2, 100)
    assert interval.ratios == {"device": 0.3, "host": 0.2, "disk": 0.0}
    assert interval.evicted["device"] == 7
    assert interval.approximate_ratio == 0.0


def test_approximate_tokens_are_counted_apart():
    history = History()
    history.add(seen(10))
    history.add(seen(12, 2, approximate=25, device=50, computed=25))
    (interval,) = history.intervals()
    assert interval.ratios["device"] == 0.5
    assert interval.approximate_ratio == 0.25
    assert prompt_tokens(seen(1, device=1, computed=2).counters, 4) == 7


def test_what_came_from_the_shared_store_is_told_apart():
    history = History()
    history.add(seen(10))
    history.add(seen(12, 2, disk=50, shared=30, device=25, computed=25))
    (interval,) = history.intervals()
    assert interval.ratios == {"device": 0.25, "host": 0.0, "disk": 0.2, "store": 0.3}
    assert interval.prompt_tokens == 100


def test_without_requests_there_are_no_ratios():
    history = History()
    for at in (10, 12):
        history.add(seen(at, device=5))
    assert history.intervals()[0].ratios == {}


def test_after_a_restart_counts_begin_again():
    history = History()
    history.add(seen(10, ended=50, device=1000, evicted=70))
    history.add(seen(12, ended=1, device=10, computed=30, evicted=2))
    (interval,) = history.intervals()
    assert interval.prompt_tokens == 40
    assert interval.ratios["device"] == 0.25
    assert interval.evicted["device"] == 2


def test_only_so_much_is_remembered():
    history = History(remembered=5)
    for at in range(20):
        history.add(seen(at, ended=at))
    assert [interval.at for interval in history.intervals()] == pytest.approx([15, 16, 17, 18, 19])
