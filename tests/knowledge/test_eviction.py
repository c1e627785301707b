"""What sets each policy apart, on cases small enough to follow by hand.

That each keeps the tree's invariants is shown for all of them in test_tree.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from every_policy import EVERY_POLICY, Flat
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.knowledge import POLICIES, DocumentCache, Node, Segment
from ragcache_engine.knowledge.eviction import DEFAULT_POLICY, GDSF, HalfLife, policy_of_tiers
from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.eviction.popularity import Popularity


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_a_document_asked_for_again_and_again_is_kept(policy: str):
    flat = Flat(policy, 8)
    for number in range(30):
        flat.ask(["favourite", "favourite", f"passing {number}"])
    assert "favourite" in flat.held()


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_choosing_a_victim_twice_chooses_the_same(policy: str):
    flat = Flat(policy, 4).ask("ABCDAAB")
    first, second = (flat.policy.victim(lambda node: not node.pins) for _ in range(2))
    assert first is not None
    assert first is second


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_nobody_is_evicted_who_may_not_be(policy: str):
    flat = Flat(policy, 4).ask("ABCD")
    assert flat.policy.victim(lambda node: False) is None


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_a_policy_forgets_nodes_with_the_tree(policy: str):
    cache = DocumentCache(4, EVERY_POLICY[policy], block_tokens=1, frequency_window=16)
    for number in range(5_000):
        cache.admit(cache.use(cache.match([Segment(str(number), 1)]), 1.0))
    kept = cache.policy.__dict__.values()
    assert all(len(part) < 4_000 for part in kept if hasattr(part, "__len__"))


def test_lfu_keeps_what_was_used_often_though_not_lately():
    assert Flat("lfu", 2).ask("AAABC").held() == {"A", "C"}
    assert Flat("lru", 2).ask("AAABC").held() == {"B", "C"}


def test_lfu_of_equals_evicts_the_one_whose_priority_was_set_first():
    assert Flat("lfu", 2).ask("ABC").held() == {"B", "C"}


def test_gdsf_forgets_old_favourites_as_its_clock_goes_on():
    flat = Flat("gdsf", 2).ask("AAA")
    assert flat.ask("BCD").held() == {"A", "D"}  # each newcomer starts at the clock plus one
    assert isinstance(flat.policy, GDSF)
    assert flat.policy.clock == 2  # B left with 1, C with 2; D has 3, as A, and came later
    assert flat.ask("E").held() == {"D", "E"}


def test_gdsf_minds_no_cost_and_pgdsf_does():
    def after(policy: str) -> set[str]:
        return Flat(policy, 2).ask("A", prefill_s=9.0).ask("B").ask("C").held()

    assert after("gdsf") == {"B", "C"}
    assert after("pgdsf") == {"A", "C"}


def test_halflife_refuses_a_newcomer_worth_less_than_its_victim():
    flat = Flat("halflife", 2).ask("AABB")
    assert flat.ask("C").held() == {"A", "B"}
    assert flat.ask("CC").held() >= {"C"}  # its uses count though it was not cached


def test_halflife_of_equals_prefers_the_later():
    assert Flat("halflife", 2).ask("ABC").held() == {"B", "C"}


def asked_halflife(names: Iterable[str]) -> HalfLife:
    policy = Flat("halflife", 10).ask(names).policy
    assert isinstance(policy, HalfLife)
    return policy


STEADY = [f"old {number}" for number in range(20)] * 50


def test_halflife_remembers_long_while_popularity_stands():
    policy = asked_halflife(STEADY)
    assert policy.half_life == 16_000


def test_halflife_remembers_shorter_while_popularity_moves_slowly():
    dice = Random(1)
    policy = asked_halflife(f"document {step // 10 + dice.randrange(100)}" for step in range(2_000))
    assert policy.half_life == 150


class Scaled(ByPriority):
    """Priorities that a test sets; counts how many are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.worth: dict[Node, float] = {}
        self.computed = 0

    def compute_priority(self, node: Node) -> float:
        self.computed += 1
        return self.worth[node]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60), st.data()
)
def test_after_a_change_of_scale_victims_come_in_the_new_order_in_the_end(
    worths: list[tuple[int, int]], data: st.DataObject
):
    policy = Scaled()
    cache = DocumentCache(0, POLICIES["lru"], block_tokens=1)
    nodes = [cache.tree.child(cache.tree.root, Segment(str(at), 1)) for at in range(len(worths))]
    for node, (old, _) in zip(nodes, worths, strict=True):
        policy.worth[node] = old
        policy.entered(node)
        if data.draw(st.booleans()):
            policy.became_evictable(node)
    policy.worth = {node: new for node, (_, new) in zip(nodes, worths, strict=True)}
    policy.change_scale()
    for node in nodes:
        if data.draw(st.booleans()):
            policy.used(node)
        policy.became_evictable(node)
    left = list(nodes)
    while left:
        policy.computed = 0
        victim = policy.victim(lambda node: True)
        assert victim in left
        assert policy.computed <= 8
        if not policy._outdated:
            assert policy.worth[victim] == min(policy.worth[node] for node in left)
        left.remove(victim)
        policy.left(victim)
    assert policy.victim(lambda node: True) is None


def test_a_change_of_half_life_takes_no_longer_with_more_nodes():
    policy = asked_halflife(f"{number}" for number in range(3_000))
    computed, compute = 0, policy.compute_priority

    def counted(node: Node) -> float:
        nonlocal computed
        computed += 1
        return compute(node)

    policy.compute_priority = counted  # type: ignore[method-assign]
    policy.change_scale()
    assert computed == 0
    policy.victim(lambda node: True)
    assert computed <= 32


def test_the_policies_of_one_trees_tiers_count_together():
    make = policy_of_tiers("halflife")
    told, other = make(), make()
    assert isinstance(other, HalfLife)
    _, nodes = popularity_after("AB", 10.0)
    for name in "AAAB":
        nodes[name].last_use += 2
        told.seen(nodes[name])
    assert other.compute_priority(nodes["A"]) > other.compute_priority(nodes["B"])


def popularity_after(
    names: Iterable[str], *half_lives: float
) -> tuple[Popularity, dict[str, Node]]:
    """Documents on their own, one a request."""
    popularity = Popularity(half_lives)
    cache = DocumentCache(0, POLICIES["lru"], block_tokens=1)
    nodes = {}
    for name in names:
        (nodes[name],) = cache.use(cache.match([Segment(name, 1)]))
        popularity.record_use(nodes[name])
    return popularity, nodes


def test_a_use_counts_half_as_much_a_half_life_later():
    # Used three times each, so nothing is discounted: A 10 requests before B, whose uses are as close.
    popularity, nodes = popularity_after("AAACCCCCCCBBB", 10.0)
    assert popularity.log2_rate(nodes["B"]) - popularity.log2_rate(nodes["A"]) == pytest.approx(1.0)


def test_rates_stay_comparable_when_counts_are_scaled_down():
    popularity, nodes = popularity_after("AAACCCCCCC" * 300 + "BBB", 2.0)
    assert popularity.log2_rate(nodes["B"]) > popularity.log2_rate(nodes["C"])
    assert popularity.log2_rate(nodes["C"]) > popularity.log2_rate(nodes["A"])
    gap = popularity.log2_rate(nodes["B"]) - popularity.log2_rate(nodes["A"])
    assert gap == pytest.approx(5.0, abs=0.1)


def test_a_node_seen_once_is_worth_less_the_fewer_of_its_depth_came_back():
    popularity = Popularity()
    cache = DocumentCache(0, POLICIES["lru"], block_tokens=1)
    for number in range(20):
        path = [Segment(f"first {number % 12}", 1), Segment(f"second {number}", 1)]
        for node in cache.use(cache.match(path)):
            popularity.record_use(node)
    assert popularity.log2_rate(node.parent) > popularity.log2_rate(node)


def test_asking_for_the_rate_of_a_node_is_no_use_of_it():
    popularity, _ = popularity_after("AABBC", 10.0)
    cache = DocumentCache(0, POLICIES["lru"], block_tokens=1)
    before = len(popularity)
    popularity.log2_rate(cache.tree.child(cache.tree.root, Segment("new", 1)))
    assert len(popularity) == before


def test_a_use_that_is_not_over_counts_as_much_as_it_will_when_it_is():
    popularity, nodes = popularity_after("AAABBBCA", 10.0)
    expected = popularity.log2_rate(nodes["B"], in_use=True)
    assert expected > popularity.log2_rate(nodes["B"])
    counted, nodes = popularity_after("AAABBBCAB", 10.0)
    assert counted.log2_rate(nodes["B"]) == pytest.approx(expected, abs=0.2)  # one request later


@pytest.mark.parametrize("half_lives", [(), (0.0,), (100.0, -1.0)])
def test_half_lives_are_positive(half_lives: tuple[float, ...]):
    with pytest.raises(ValueError, match="half-lives"):
        HalfLife(half_lives)


def test_the_default_is_one_of_the_policies():
    assert DEFAULT_POLICY in POLICIES
