"""What was measured decides between loading and computing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.tiers.speed import (
    LATEST_WEIGHT,
    MOST_TIMES_SLOWER,
    PASSED_OVER_TO_TRY,
    SHORT_STEPS,
    SHORTEST_STEP_TOKENS,
    ComputingSpeed,
    CopyingSpeed,
)

PROFILE = CostProfile.default()


def worth(computing: ComputingSpeed, copying: CopyingSpeed, **changes: int) -> int:
    asked = {
        "cached_tokens": 0,
        "computed_tokens": 1000,
        "loadable_blocks": 20,
        "block_tokens": 16,
        "block_bytes": 10_000,
    }
    return computing.blocks_worth_loading(copying.rate, **{**asked, **changes})


def test_the_bandwidth_follows_what_is_seen():
    copying = CopyingSpeed(1e9)
    copying.record_copy(2_000_000, 1e-3)
    assert copying.bandwidth_bytes_per_s == pytest.approx(2e9), "what was assumed is forgotten"
    copying.record_copy(3_000_000, 1e-3)
    assert copying.bandwidth_bytes_per_s == pytest.approx(2e9 + LATEST_WEIGHT * 1e9)
    for _ in range(100):
        copying.record_copy(500, 1e-6)
    assert copying.bandwidth_bytes_per_s == pytest.approx(5e8)


@pytest.mark.parametrize(("size_bytes", "seconds"), [(0, 1.0), (100, 0.0), (0, 0.0)])
def test_a_copy_of_nothing_or_in_no_time_says_nothing(size_bytes: int, seconds: float):
    copying = CopyingSpeed(1e9)
    copying.record_copy(size_bytes, seconds)
    assert copying.bandwidth_bytes_per_s == 1e9


def test_what_was_waited_for_beyond_the_copying_is_latency():
    copying = CopyingSpeed(1e6)
    for _ in range(100):
        copying.record_wait(1_000_000, 1.5)
    assert copying.latency_s == pytest.approx(0.5)
    for _ in range(100):
        copying.record_wait(1_000_000, 0.5)  # quicker than the bandwidth says: no latency at all
    assert copying.latency_s == pytest.approx(0.0, abs=1e-6)


def test_one_slow_wait_decides_nothing():
    copying = CopyingSpeed(1e6)
    for _ in range(3):
        copying.record_wait(0, 2.0)
        for _ in range(2):
            copying.record_wait(0, 0.0)
        assert copying.latency_s == 0.0


def test_one_of_many_requests_that_pass_copies_over_tries_them():
    copying = CopyingSpeed(1e9)
    tries = [copying.pass_over() for _ in range(3 * PASSED_OVER_TO_TRY)]
    assert sum(tries) == 3
    for _ in range(50):
        copying.record_copy(1, 1.0)
        copying.record_wait(0, 9.0)
    assert copying.best_rate == (1e9, 0.0), "a trial hopes for what was assumed at first"


def test_times_are_the_profiles_until_a_step_was_seen():
    computing = ComputingSpeed(PROFILE)
    assert computing.prefill_s(100, 500) == PROFILE.prefill_s(100, 500)
    computing.record_step(0, 500, 3 * PROFILE.prefill_s(0, 500))
    assert computing.prefill_s(100, 500) == pytest.approx(3 * PROFILE.prefill_s(100, 500))
    for _ in range(100):
        computing.record_step(0, 700, 2 * PROFILE.prefill_s(0, 700))
    assert computing.prefill_s(100, 500) == pytest.approx(2 * PROFILE.prefill_s(100, 500))


def test_short_steps_and_those_in_no_time_say_nothing():
    computing = ComputingSpeed(PROFILE)
    computing.record_step(0, SHORTEST_STEP_TOKENS - 1, 99.0)
    computing.record_step(0, 500, 0.0)
    computing.record_step(0, 500, -1.0)
    assert computing.prefill_s(0, 500) == PROFILE.prefill_s(0, 500)


def test_fast_copies_are_worth_it_and_slow_ones_are_not():
    computing = ComputingSpeed(PROFILE)
    assert worth(computing, CopyingSpeed(1e9)) == 20
    assert worth(computing, CopyingSpeed(1e6)) == 0
    assert worth(computing, CopyingSpeed(1e9), loadable_blocks=0) == 0


def test_a_step_is_bounded_once_it_is_known_what_a_short_one_takes():
    computing = ComputingSpeed(PROFILE)
    assert computing.bound_step(4096) == 4096
    computing.record_short_step(PROFILE.prefill_s(0, 4096) / 4096 * 50)
    assert computing.bound_step(4096) == pytest.approx(50 * SHORT_STEPS, rel=0.1)
    assert computing.bound_step(100) == 100, "never more than may be"
    for _ in range(100):
        computing.record_short_step(1e-9)
    assert computing.bound_step(4096) == SHORTEST_STEP_TOKENS


def test_the_time_of_short_steps_follows_what_is_seen():
    computing = ComputingSpeed(PROFILE)
    computing.record_short_step(0.0)
    assert computing.short_step_s == 0.0, "a step in no time says nothing"
    computing.record_short_step(0.01)
    computing.record_short_step(0.02)
    assert computing.short_step_s == pytest.approx(0.01 + LATEST_WEIGHT * 0.01)


def test_a_pause_is_no_speed():
    computing = ComputingSpeed(PROFILE)
    computing.record_short_step(0.01)
    computing.record_step(0, 1000, PROFILE.prefill_s(0, 1000))
    bound = computing.bound_step(4096)
    computing.record_short_step(20.0)
    computing.record_step(0, 1000, 20.0)
    most = 1 + LATEST_WEIGHT * (MOST_TIMES_SLOWER - 1)
    assert computing.short_step_s == pytest.approx(0.01 * most)
    assert computing.prefill_s(0, 1000) == pytest.approx(PROFILE.prefill_s(0, 1000) * most)
    for _ in range(50):
        computing.record_step(0, 1000, PROFILE.prefill_s(0, 1000))
        computing.record_short_step(0.01)
    assert computing.bound_step(4096) == pytest.approx(bound, rel=0.01)


def test_a_machine_that_has_become_slower_is_noticed():
    computing = ComputingSpeed(PROFILE)
    computing.record_step(0, 1000, PROFILE.prefill_s(0, 1000))
    for _ in range(50):
        computing.record_step(0, 1000, 20 * PROFILE.prefill_s(0, 1000))
    assert computing.prefill_s(0, 1000) == pytest.approx(20 * PROFILE.prefill_s(0, 1000), rel=0.01)


def test_a_latency_longer_than_the_computing_speaks_against_loading():
    copying = CopyingSpeed(1e9)
    assert worth(ComputingSpeed(PROFILE), copying) == 20
    copying.latency_s = 10.0
    assert worth(ComputingSpeed(PROFILE), copying) == 0


def test_a_machine_slower_than_its_profile_loads_what_a_fast_one_computes():
    computing, copying = ComputingSpeed(PROFILE), CopyingSpeed(3e6)
    assert worth(computing, copying) == 0
    computing.record_step(0, 500, 10 * PROFILE.prefill_s(0, 500))
    assert worth(computing, copying) == 20
    computing = ComputingSpeed(PROFILE)
    copying.bandwidth_bytes_per_s, copying.latency_s = 1e9, 0.05
    assert worth(computing, copying) == 0
    computing.record_step(0, 500, 10 * PROFILE.prefill_s(0, 500))
    assert worth(computing, copying) == 20


@given(
    stretch=st.floats(0.1, 10),
    bandwidth=st.floats(1e5, 1e10),
    latency=st.floats(0, 1),
    cached=st.integers(0, 5000),
    computed=st.integers(1, 5000),
    loadable=st.integers(0, 300),
)
@settings(max_examples=examples(80))
@pytest.mark.slow
def test_loading_never_takes_longer_than_computing_as_far_as_is_known(
    stretch: float, bandwidth: float, latency: float, cached: int, computed: int, loadable: int
):
    computing, copying = ComputingSpeed(PROFILE), CopyingSpeed(bandwidth)
    computing.record_step(0, 1000, stretch * PROFILE.prefill_s(0, 1000))
    copying.latency_s = latency
    loadable = min(loadable, (computed - 1) // 16)
    blocks = worth(
        computing,
        copying,
        cached_tokens=cached,
        computed_tokens=computed,
        loadable_blocks=loadable,
    )
    assert 0 <= blocks <= loadable

    def done_s(blocks: int) -> float:
        copied = latency + blocks * 10_000 / bandwidth if blocks else 0.0
        return copied + computing.prefill_s(cached + 16 * blocks, computed - 16 * blocks)

    assert done_s(blocks) <= min(map(done_s, range(loadable + 1))) * (1 + 1e-6) + 1e-9
