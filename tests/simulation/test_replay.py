"""Replayed traces: hit rates worked by hand, the oracle's bound, and recorded counts."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from every_policy import EVERY_POLICY
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.knowledge import POLICIES
from ragcache_engine.simulation.oracle import oracle, reuse_anywhere
from ragcache_engine.simulation.replay import Replay, default_cost, replay
from ragcache_engine.simulation.traces import Trace, draw_drifting, draw_zipf, zipf_weights


def trace(*requests: str, **tokens: int) -> Trace:
    """Requests as words, a document a letter, of one token if not told otherwise."""
    sizes = {name: 1 for request in requests for name in request} | tokens
    return Trace(tuple(tuple(request) for request in requests), sizes)


def test_the_document_hit_rate_counts_leading_documents_as_the_paper_does():
    result = replay(trace("AB", "AC"), 100, POLICIES["lru"])
    assert result.document_hit_rate == 0.25  # the second request hits one of its two: 50%
    assert (result.hit_documents, result.retrieved_documents) == (1, 4)


def test_a_document_behind_a_missing_one_is_no_hit():
    assert replay(trace("AB", "CB"), 100, POLICIES["lru"]).hit_documents == 0


def test_tokens_of_a_document_cached_in_part_count_and_the_document_does_not():
    result = replay(trace("A", "B", "A", A=10, B=4), 10, POLICIES["lru"])
    assert result.cached_tokens == 6  # B took the last four of A
    assert result.hit_documents == 0
    assert result.evicted_tokens == 8  # four of A, then B
    assert result.token_hit_rate == 6 / 24


def test_saved_seconds_are_what_the_cost_function_says():
    result = replay(trace("AB", "AB"), 100, POLICIES["lru"], cost=lambda cached, new: 2.0 * new)
    assert result.saved_s == 4.0


def test_the_system_text_counts_as_tokens_and_not_as_a_document():
    result = replay(trace("A", "B"), 100, POLICIES["lru"], system_tokens=5)
    assert (result.cached_tokens, result.total_tokens) == (5, 12)
    assert result.hit_documents == 0


def test_documents_beyond_the_cache_depth_are_not_kept():
    result = replay(trace("AB", "AB"), 100, POLICIES["lru"], cache_depth=2)
    assert result.hit_documents == 1


def test_another_order_of_documents_is_another_path():
    asked = trace("AB", "BA")
    assert replay(asked, 100, POLICIES["lru"]).hit_documents == 0
    by_name = replay(
        asked, 100, POLICIES["lru"], order=lambda tree, path: [path[0], *sorted(path[1:])]
    )
    assert by_name.hit_documents == 2


def test_an_empty_trace_has_rates_of_zero():
    result = replay(Trace((), {}), 10, POLICIES["lru"])
    assert result == Replay(0, 0, 0, 0, 0, 0.0, 0)
    assert result.token_hit_rate == result.document_hit_rate == 0.0


def test_a_cached_prefix_saves_time_and_nothing_to_compute_takes_none():
    assert default_cost(0, 100) > default_cost(60, 40) > default_cost(100, 0) == 0.0


def test_the_oracle_keeps_what_comes_next_and_refuses_what_does_not():
    assert oracle(trace("A", "B", "A"), 1).cached == (0, 0, 1)
    assert oracle(trace("A", "B", "C", "A", "B", "C"), 2).tokens == 2


def test_the_oracle_holds_prefixes_only():
    """Both tokens of the first path come again, one can be kept: the one that can be read."""
    assert oracle(trace("AB", "AB"), 1).cached == (0, 1)


def test_the_oracle_holds_documents_in_part():
    assert oracle(trace("A", "A", A=10), 7).tokens == 7


def test_reuse_anywhere_minds_neither_order_nor_what_came_before():
    asked = trace("AB", "BA", "CB")
    assert reuse_anywhere(asked) == 3
    assert reuse_anywhere(asked, 1) == 1  # B, right after itself


SIZES = {"A": 1, "B": 2, "C": 5, "D": 3}
requests = st.lists(st.lists(st.sampled_from("ABCD"), max_size=3, unique=True), max_size=30)


@given(requests, st.integers(0, 15), st.sampled_from(list(EVERY_POLICY)), st.integers(0, 2))
def test_no_policy_beats_the_oracle(
    asked: list[list[str]], capacity: int, policy: str, system_tokens: int
):
    tried = Trace(tuple(map(tuple, asked)), SIZES)
    best = oracle(tried, capacity, system_tokens=system_tokens).tokens
    result = replay(tried, capacity, EVERY_POLICY[policy], system_tokens=system_tokens)
    assert result.cached_tokens <= best


@given(requests)
def test_with_room_for_all_nothing_is_worse_than_the_oracle_and_position_only_costs(
    asked: list[list[str]],
):
    tried = Trace(tuple(map(tuple, asked)), SIZES)
    best = oracle(tried, 10_000).tokens
    assert all(replay(tried, 10_000, make).cached_tokens == best for make in EVERY_POLICY.values())
    assert best <= reuse_anywhere(tried)


@given(st.lists(st.sampled_from("ABCD"), max_size=9), st.integers(0, 3))
def test_the_oracle_is_as_good_as_trying_everything(asked: list[str], capacity: int):
    assert oracle(trace(*asked), capacity).tokens == best_of_all(tuple(asked), capacity)


@given(st.lists(st.sampled_from(["A", "AB", "AC", "B", "BA"]), max_size=7), st.integers(0, 3))
def test_the_oracle_is_as_good_as_trying_everything_on_a_tree(asked: list[str], capacity: int):
    assert oracle(trace(*asked), capacity).tokens == best_of_all(tuple(asked), capacity)


def best_of_all(asked: tuple[str, ...], capacity: int) -> int:
    """Every choice of what to hold after every request: whole prefixes, of unit documents."""

    @cache
    def best(at: int, held: frozenset[str]) -> int:
        if at == len(asked):
            return 0
        prefixes = {asked[at][: end + 1] for end in range(len(asked[at]))}
        pool = sorted(held | prefixes)
        return len(prefixes & held) + max(
            best(at + 1, frozenset(kept))
            for size in range(min(capacity, len(pool)) + 1)
            for kept in combinations(pool, size)
            if all(len(path) == 1 or path[:-1] in kept for path in kept)
        )

    return best(0, frozenset())


def test_zipf_draws_the_nth_question_an_nth_as_often():
    drawn = draw_zipf(trace(*"ABCDEFGH"), 8_000, seed=3)
    counts = sorted((drawn.requests.count((name,)) for name in "ABCDEFGH"), reverse=True)
    for count, weight in zip(counts, zipf_weights(8), strict=True):
        assert count == pytest.approx(8_000 * weight / sum(zipf_weights(8)), rel=0.15)


def test_the_same_seed_draws_the_same_requests():
    asked = trace(*"ABCDEFGH")
    assert (
        draw_zipf(asked, 50, seed=3) == draw_zipf(asked, 50, seed=3) != draw_zipf(asked, 50, seed=4)
    )
    assert draw_drifting(asked, 50, 3, every=20) == draw_drifting(asked, 50, 3, every=20)


def test_popularity_that_drifts_changes_when_it_is_said_to():
    asked = trace(*(chr(code) for code in range(0x4E00, 0x4E00 + 100)))
    drawn = draw_drifting(asked, 2_000, 5, every=1_000).requests
    first, second = drawn[:1_000], drawn[1_000:]
    favourite = max(set(first), key=first.count)
    assert first.count(favourite) > 100
    assert second.count(favourite) < 50
    standing = draw_drifting(asked, 2_000, 5, every=1_000, share=0.0).requests
    assert standing[1_000:].count(max(set(standing), key=standing.count)) > 100


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"every": 0}, "every"), ({"share": 1.5}, "share"), ({"requests": -1}, "requests")],
)
def test_impossible_streams_are_refused(wrong: dict[str, float], message: str):
    asked = {"requests": 10, "seed": 1} | wrong
    with pytest.raises(ValueError, match=message):
        draw_drifting(trace("A"), **asked)


def test_nothing_can_be_drawn_from_nothing():
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_zipf(Trace((), {}), 1, seed=1)


def test_a_document_without_tokens_is_refused():
    with pytest.raises(ValueError, match="'A'"):
        Trace((("A",),), {})


def small_trace() -> Trace:
    """60 questions over 24 documents of 3 to 26 tokens, three to a question; 600 of them drawn."""
    names = [f"document {number}" for number in range(24)]
    asked = tuple(
        (names[n * n % 24], names[(n * 7 + 1) % 24], names[(n * 5 + 2) % 24]) for n in range(60)
    )
    return draw_drifting(
        Trace(asked, {name: 3 + place for place, name in enumerate(names)}), 600, 7, every=300
    )


RECORDED = {
    "lru": (7606, 18918),
    "lfu": (8790, 18651),
    "gdsf": (8444, 19004),
    "pgdsf": (8115, 18850),
    "arc": (8541, 18808),
    "s3fifo": (9143, 19236),
    "sieve": (8399, 19339),
    "wtinylfu": (8596, 18643),
    "halflife": (10648, 18791),
    "oracle": (13274, 20996),
}
"""Token hits at room for 100 and for 400 tokens."""


@pytest.mark.parametrize("name", EVERY_POLICY)
def test_the_recorded_hits_have_not_moved(name: str):
    hits = tuple(
        replay(small_trace(), capacity, EVERY_POLICY[name]).cached_tokens for capacity in (100, 400)
    )
    assert hits == RECORDED[name]


def test_the_recorded_hits_of_the_oracle_have_not_moved():
    assert (
        tuple(oracle(small_trace(), capacity).tokens for capacity in (100, 400))
        == RECORDED["oracle"]
    )
