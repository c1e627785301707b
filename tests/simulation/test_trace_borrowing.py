"""A trace whose documents are borrowed at any position: what is exact, borrowed, and computed anew."""

from __future__ import annotations

import pytest

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.simulation.sizes import TierSizes
from ragcache_engine.simulation.trace_prompts import TracePrompts
from ragcache_engine.simulation.trace_replay import TraceReplay, replay_borrowing, replay_trace
from ragcache_engine.simulation.traces import Trace, draw_zipf

PROFILE = CostProfile.default()
SWAPPED = Trace((("a", "b"), ("b", "a")), {"a": 100, "b": 60})
PAIRS = Trace(
    tuple((f"a{n % 7}", f"b{n % 3}", f"a{(n + 2) % 7}") for n in range(40)),
    {f"{letter}{n}": 90 + 10 * n for letter in "ab" for n in range(7)},
)


def replayed(
    trace: Trace, ratio: float | None, *, device: int = 200, host: int = 0, disk: int = 0
) -> TraceReplay:
    prompts = TracePrompts(trace, system_tokens=16, block_tokens=16, has_disk=disk > 0)
    sizes = TierSizes(16, device, host, disk)
    if ratio is None:
        return replay_trace(trace, prompts, sizes, "lru", profile=PROFILE)
    return replay_borrowing(trace, prompts, sizes, "lru", profile=PROFILE, ratio=ratio)


def test_a_document_is_borrowed_wherever_it_stood_before():
    result = replayed(SWAPPED, 0.0)
    assert replayed(SWAPPED, None).cached.total == 16  # exactly, only the system text comes again
    # The second prompt begins with b, which the first one has borrowed, and so stored: one block of the
    # system text and three of b are exact. It borrows a.
    assert result.cached.device == 16 + 48
    assert result.borrowed.device == 99  # the last token of each borrowed document is computed
    assert result.recomputed_tokens == 2


def test_the_ratio_is_that_of_the_tokens_computed_anew():
    result = replayed(SWAPPED, 0.25)
    assert result.borrowed.device == 74
    # Of b in the first prompt and of a in the second, and the last token of each.
    assert result.recomputed_tokens == (15 + 1) + (25 + 1)


def test_all_is_computed_anew_at_ratio_one():
    result = replayed(SWAPPED, 1.0)
    assert result.borrowed.total == 0
    assert result.recomputed_tokens == 160


def test_a_first_document_is_never_borrowed():
    trace = Trace((("a",), ("a",)), {"a": 100})
    assert replayed(trace, 0.0) == replayed(trace, None)


@pytest.mark.parametrize(
    "tiers", [{}, {"device": 40, "host": 200}, {"device": 40, "host": 40, "disk": 400}]
)
def test_tokens_of_both_kinds_are_never_more_than_those_of_the_prompts(tiers: dict[str, int]):
    trace = draw_zipf(PAIRS, 60, 1)
    result = replayed(trace, 0.2, **tiers)
    told = result.cached.total + result.borrowed.total + result.recomputed_tokens
    assert result.borrowed.total > 0
    assert told <= result.prompt_tokens


def test_slower_tiers_lend_what_the_device_has_evicted():
    trace = draw_zipf(PAIRS, 60, 1)
    small = {"device": 60}
    assert replayed(trace, 0.1, **small, host=300).borrowed.host > 0
    assert replayed(trace, 0.1, **small, host=30, disk=600).borrowed.disk > 0


def test_borrowing_saves_time_where_exact_reuse_finds_little():
    shuffled = tuple((f"d{n % 5}", f"d{(n * 3 + 1) % 5}", f"d{(n * 2 + 3) % 5}") for n in range(60))
    trace = Trace(
        tuple(tuple(dict.fromkeys(request)) for request in shuffled),
        {f"d{n}": 120 for n in range(5)},
    )
    assert replayed(trace, 0.1).saved_s > replayed(trace, None).saved_s


def test_a_device_too_small_for_donors_computes_exactly():
    result = replayed(SWAPPED, 0.0, device=14)
    assert result.borrowed.total == 0
    assert result.too_long == 0


def test_donors_that_are_loaded_whole_are_not_computed():
    others = tuple((f"x{n}", f"y{n}") for n in range(6))
    sizes = {"a": 100, "b": 60} | dict.fromkeys([name for pair in others for name in pair], 100)
    trace = Trace((("a", "b"), *others, ("b", "a")), sizes)
    prompts = TracePrompts(trace, system_tokens=16, block_tokens=16, has_disk=False)
    copies_at_once = TierSizes(16, 40, 400, token_bytes=1)
    on_device, from_host = (
        replay_borrowing(trace, prompts, tiers, "lru", profile=PROFILE, ratio=0.0)
        for tiers in (TierSizes(16, 400), copies_at_once)
    )
    assert from_host.borrowed.host == on_device.borrowed.device > 0
    assert from_host.prefill_s == pytest.approx(
        on_device.prefill_s, abs=PROFILE.prefill_s(0, 1) / 2
    )
