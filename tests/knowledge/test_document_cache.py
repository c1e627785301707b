"""The paper's document cache: what is cached of a path, who leaves, and what a use costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from every_policy import EVERY_POLICY
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from thoroughness import examples

from ragcache_engine.knowledge import POLICIES, DocumentCache, FreedBlocks, Node, Segment, Tier

S = Segment("S", 4)


def path(*names: str, tokens: int = 4) -> list[Segment]:
    return [S, *(Segment(name, tokens) for name in names)]


def cache_of(policy: str = "lru", block_tokens: int = 1, *, blocks: int) -> DocumentCache:
    return DocumentCache(blocks, EVERY_POLICY[policy], block_tokens=block_tokens)


def ask(
    cache: DocumentCache, segments: Sequence[Segment], prefill_s: float = 1.0
) -> list[FreedBlocks]:
    """A request from beginning to end; returns what had to leave."""
    return cache.admit(cache.use(cache.match(segments), prefill_s))


def cached(cache: DocumentCache, *names: str) -> int:
    return cache.match(path(*names)).cached_tokens


def named(freed: list[FreedBlocks]) -> list[str]:
    return [each.node.segment.name for each in freed]


def test_an_unknown_path_is_not_cached():
    match = cache_of(blocks=100).match(path("D1", "D2"))
    assert match.nodes == ()
    assert (match.cached_tokens, match.computed_tokens) == (0, 12)


def test_a_path_asked_for_once_is_cached_with_every_prefix_of_it():
    cache = cache_of(blocks=100)
    ask(cache, path("D1", "D2"))
    assert cached(cache, "D1", "D2") == 12
    assert cached(cache, "D1") == cached(cache, "D1", "D3") == 8
    assert cached(cache, "D2") == 4


def test_a_document_behind_another_one_is_another_node():
    cache = cache_of(blocks=100)
    ask(cache, path("D1", "D3"))
    ask(cache, path("D2", "D3"))
    assert len(cache.tree) == 5


def test_two_spellings_of_one_document_share_nothing():
    cache = cache_of(blocks=100)
    ask(cache, [S, Segment("D1", 4, b"one")])
    assert cache.match([S, Segment("D1", 4, b"two")]).cached_tokens == 4


def test_the_unit_is_the_block_and_a_block_belongs_to_the_segment_of_its_last_token():
    cache = cache_of(block_tokens=3, blocks=100)
    nodes = cache.use(cache.match(path("D1", "D2")))  # 4 + 4 + 4 tokens: 1 + 1 + 2 blocks
    assert [node.blocks for node in nodes] == [1, 1, 2]
    cache.admit(nodes)
    assert cache.match(path("D1")).cached_tokens == 6


def test_the_leaf_leaves_from_its_last_block_backwards_and_only_as_far_as_it_must():
    cache = cache_of(blocks=13)
    ask(cache, path("D1", "D2"))
    freed = ask(cache, path("D3"))
    assert named(freed) == ["D2"]
    assert [(each.start, each.end) for each in freed] == [(1, 4)]
    assert cached(cache, "D1", "D2") == 9


def test_a_parent_stays_as_long_as_a_child_is_there():
    cache = cache_of("lru", blocks=12)
    ask(cache, path("D1", "D2"))
    ask(cache, path("D1"))  # D1 is newer than D2, and S newer than both
    ask(cache, path("D3", tokens=8))
    assert cached(cache, "D1", "D2") == 4


def test_a_pinned_path_is_not_evicted():
    cache = cache_of(blocks=12)
    ask(cache, path("D1"))
    with cache.tree.pinned(cache.match(path("D1")).nodes):
        ask(cache, path("D2"))
        ask(cache, path("D3"))
        assert cached(cache, "D1") == 8
    ask(cache, path("D4", tokens=8))
    assert cached(cache, "D1") == 4


def test_only_the_first_documents_of_a_path_are_kept_if_so_asked():
    cache = DocumentCache(100, POLICIES["lru"], block_tokens=1, cache_depth=2)
    ask(cache, path("D1", "D2", "D3"))
    assert cached(cache, "D1", "D2", "D3") == 8


def test_uses_survive_eviction_and_end_with_the_window():
    cache = DocumentCache(8, POLICIES["lru"], block_tokens=1, frequency_window=6)
    (_, first) = cache.use(cache.match(path("D1")))
    cache.use(cache.match(path("D1")))
    assert first.uses == 2
    cache.use(cache.match(path("D2")))
    assert first.uses == 2
    cache.use(cache.match(path("D2")))
    assert first.uses == 1
    cache.use(cache.match(path("D2")))
    assert cache.match(path("D1")).nodes == cache.match(path()).nodes  # forgotten: it held nothing


def test_the_cost_of_a_node_is_the_mean_over_the_prefills_that_computed_it():
    cache = cache_of(blocks=0)
    (_, node) = cache.use(cache.match(path("D1")), prefill_s=0.8)  # 8 tokens
    assert node.cost_s_per_token == pytest.approx(0.1)
    cache.use(cache.match(path("D1")), prefill_s=2.4)
    assert node.cost_s_per_token == pytest.approx(0.2)


def test_a_cached_node_keeps_its_cost():
    cache = cache_of(blocks=100)
    ask(cache, path("D1"), prefill_s=0.8)
    (_, node) = cache.use(cache.match(path("D1")), prefill_s=99.0)
    assert node.cost_s_per_token == pytest.approx(0.1)
    assert node.prefills == 1


def test_pgdsf_priority_is_clock_plus_uses_times_cost_and_the_clock_follows_what_leaves():
    """Formulas 2 to 4 and Algorithm 1, on numbers small enough for a head."""
    cache = cache_of("pgdsf", blocks=12)
    policy = cache.policy
    nodes = {}
    for name, prefill_s in (("D1", 0.8), ("D2", 0.8)):
        nodes[name] = cache.use(cache.match(path(name)), prefill_s)[1]
        cache.admit(cache.match(path(name)).nodes)
    assert policy.priority_of(nodes["D1"]) == pytest.approx(0.1)  # 0 + 1 x 0.8 s / 8 tokens
    assert policy.priority_of(nodes["D2"]) == pytest.approx(0.2)  # S was cached: 0.8 s / 4 tokens
    ask(cache, path("D1"))
    assert policy.priority_of(nodes["D1"]) == pytest.approx(0.2)  # 0 + 2 x 0.1
    ask(cache, path("D1"))
    assert policy.priority_of(nodes["D1"]) == pytest.approx(0.3)
    freed = ask(cache, path("D3"), prefill_s=0.4)
    assert named(freed) == ["D2"]
    assert policy.clock == pytest.approx(0.2)
    newcomer = cache.match(path("D3")).nodes[1]
    assert policy.priority_of(newcomer) == pytest.approx(0.3)  # 0.2 + 1 x 0.1


NAMES = "ABCDE"
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
TOKENS = {"A": 1, "B": 2, "C": 5, "D": 7, "E": 3}  # with blocks of 3, some own none


class AnyCallsInAnyOrder(RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.cache = DocumentCache(
            6, EVERY_POLICY[self.policy], block_tokens=3, frequency_window=12
        )
        self.running: list[tuple[Node, ...]] = []
        self.held: dict[Node, int] = {}

    def steps(self, names: list[str]) -> list[Segment]:
        return [Segment("S", 4), *(Segment(name, TOKENS[name]) for name in names)]

    def release(self, freed: list[FreedBlocks]) -> None:
        """What an owner would do, refusing what cannot be done."""
        for each in freed:
            held = self.held.get(each.node, 0)
            assert 0 <= each.start < each.end, f"{each} frees nothing"
            assert held == each.end, f"{each} frees what is not there"
            self.held[each.node] = each.start

    @rule(names=paths, prefill_s=st.floats(0, 2))
    def use_and_admit(self, names: list[str], prefill_s: float) -> None:
        nodes = self.cache.use(self.cache.match(self.steps(names)), prefill_s)
        self.release(self.cache.admit(nodes))
        for node in nodes:
            self.held[node] = node.resident[0]

    @rule(names=paths)
    def use_alone(self, names: list[str]) -> None:
        self.cache.use(self.cache.match(self.steps(names)), 0.1)

    @rule(names=paths)
    def begin(self, names: list[str]) -> None:
        nodes = self.cache.match(self.steps(names)).nodes
        self.cache.tree.pin(nodes)
        self.running.append(nodes)

    @precondition(lambda self: self.running)
    @rule()
    def end(self) -> None:
        self.cache.tree.unpin(self.running.pop())

    @rule(blocks=st.integers(0, 9))
    def resize(self, blocks: int) -> None:
        tree = self.cache.tree
        before = tree.capacity(Tier.DEVICE)
        try:
            self.release(tree.set_capacity(Tier.DEVICE, blocks))
        except ValueError:
            assert tree.capacity(Tier.DEVICE) == before

    @invariant()
    def every_invariant_holds(self) -> None:
        self.cache.tree.check()

    @invariant()
    def the_freed_blocks_tell_what_is_where(self) -> None:
        for node, blocks in self.held.items():
            if node.parent is not None:
                assert node.resident[0] == blocks
            else:
                assert not blocks


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.slow
def test_invariants_hold_under(policy: str):
    machine = type("Machine", (AnyCallsInAnyOrder,), {"policy": policy})
    machine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
    machine.TestCase().runTest()
