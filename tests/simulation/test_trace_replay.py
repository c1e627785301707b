"""A trace on the simulated device: what is found, where, and what it saves."""

from __future__ import annotations

import pytest

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.knowledge.eviction import LRU
from ragcache_engine.simulation.oracle import oracle
from ragcache_engine.simulation.replay import replay
from ragcache_engine.simulation.sizes import TierSizes
from ragcache_engine.simulation.trace_prompts import TracePrompts
from ragcache_engine.simulation.trace_replay import TraceReplay, endless_hit_rate, replay_trace
from ragcache_engine.simulation.traces import Trace, draw_zipf

PROFILE = CostProfile.default()
PAIRS = Trace(
    tuple((f"a{n % 7}", f"b{n % 3}") for n in range(40)),
    {f"{letter}{n}": 90 + 10 * n for letter in "ab" for n in range(7)},
)


def replayed(
    trace: Trace,
    *,
    device_tokens: int = 16_000,
    host_tokens: int = 0,
    disk_tokens: int = 0,
    policy: str = "lru",
    order: str = "retrieved",
    system_tokens: int = 20,
    block_tokens: int = 16,
) -> TraceReplay:
    prompts = TracePrompts(
        trace, system_tokens=system_tokens, block_tokens=block_tokens, has_disk=disk_tokens > 0
    )
    sizes = TierSizes(
        block_tokens,
        device_tokens // block_tokens,
        host_tokens // block_tokens,
        disk_tokens // block_tokens,
    )
    return replay_trace(trace, prompts, sizes, policy, profile=PROFILE, order=order)


def test_a_request_that_comes_again_computes_only_what_fills_no_block():
    trace = Trace((("a", "b"),) * 2, {"a": 100, "b": 50})
    result = replayed(trace)
    assert (result.requests, result.retrieved_documents, result.found_documents) == (2, 4, 2)
    assert result.prompt_tokens == 2 * 170
    assert result.cached.device == 160
    cold_s, warm_s = PROFILE.prefill_s(0, 171), PROFILE.prefill_s(160, 11)
    assert result.cold_s == pytest.approx(2 * cold_s)
    assert result.saved_s == pytest.approx(cold_s - warm_s)


def test_a_document_found_in_part_is_not_found():
    trace = Trace((("a", "b"), ("a", "c")), {"a": 100, "b": 50, "c": 50})
    result = replayed(trace)
    assert (result.found_documents, result.cached.total) == (1, 112)


def test_in_blocks_of_one_token_with_room_for_all_it_finds_what_the_document_cache_finds():
    result = replayed(PAIRS, block_tokens=1, device_tokens=100_000)
    known = replay(PAIRS, 100_000, LRU, system_tokens=20)
    assert result.cached.total == known.cached_tokens
    assert result.found_documents == known.hit_documents


@pytest.mark.parametrize("device_tokens", [400, 800, 1_600])
@pytest.mark.parametrize("policy", ["lru", "pgdsf", "halflife"])
def test_no_policy_beats_the_oracle(policy: str, device_tokens: int):
    trace = draw_zipf(PAIRS, 300, 1)
    result = replayed(trace, policy=policy, device_tokens=device_tokens)
    assert 0 < result.cached.total <= oracle(trace, device_tokens, system_tokens=20).tokens


def test_slower_tiers_give_back_what_the_device_has_evicted():
    alone = replayed(PAIRS, device_tokens=400)
    both = replayed(PAIRS, device_tokens=400, host_tokens=10_000)
    small_host = replayed(PAIRS, device_tokens=400, host_tokens=800, disk_tokens=10_000)
    assert both.cached.host > 0
    assert small_host.cached.disk > 0
    assert min(both.cached.total, small_host.cached.total) > alone.cached.total
    assert alone.saved_s < both.saved_s < both.cold_s


def test_endless_memory_finds_what_a_device_with_room_for_all_finds():
    for order in ("retrieved", "canonical"):
        prompts = TracePrompts(PAIRS, system_tokens=20, block_tokens=16, has_disk=False)
        result = replayed(PAIRS, order=order)
        assert endless_hit_rate(PAIRS, prompts, "lru", order=order) == result.token_hit_rate


@pytest.mark.parametrize("order", ["canonical", "cached"])
def test_an_order_of_documents_finds_more_than_that_of_the_retriever(order: str):
    pairs = [(f"a{n}", f"b{n}") for n in range(20)]
    trace = Trace(
        tuple(request for pair in pairs for request in (pair, pair[::-1])),
        {document: 100 for pair in pairs for document in pair},
    )
    assert replayed(trace, order=order).found_documents == 40
    assert replayed(trace).found_documents == 0


def test_prompts_that_do_not_fit_are_computed_from_scratch():
    trace = Trace((("a",), ("b",), ("a",), ("b",)), {"a": 50, "b": 500})
    result = replayed(trace, device_tokens=160, system_tokens=0)
    assert (result.too_long, result.cached.total) == (2, 48)
    assert result.cold_s - result.saved_s > 2 * PROFILE.prefill_s(0, 501)


def test_the_policies_of_a_replay_begin_anew():
    first, second = (replayed(PAIRS, policy="halflife", device_tokens=400) for _ in range(2))
    assert first == second
