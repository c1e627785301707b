"""The knowledge tree keeps its invariants whatever is asked of it, and says what has to move."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ragcache_engine.knowledge import POLICIES, KnowledgeTree, Move, MoveKind, Node, Segment, Tier

DEVICE, HOST, DISK = Tier
S = Segment("S", 4)


def path(*names: str, tokens: int = 4) -> list[Segment]:
    return [S, *(Segment(name, tokens) for name in names)]


def tree_of(policy: str = "lru", block_tokens: int = 1, **blocks: int) -> KnowledgeTree:
    return KnowledgeTree(
        {Tier(name): count for name, count in blocks.items()},
        POLICIES[policy],
        block_tokens=block_tokens,
    )


def ask(tree: KnowledgeTree, segments: Sequence[Segment], prefill_s: float = 1.0) -> list[Move]:
    """A request from beginning to end; returns what had to move."""
    return tree.admit(tree.use(tree.match(segments), prefill_s))


def cached(tree: KnowledgeTree, *names: str) -> int:
    return tree.match(path(*names)).cached_tokens


def said(moves: list[Move]) -> list[tuple[str, str, str]]:
    return [(move.kind.value, move.node.segment.name, move.source.value) for move in moves]


def test_an_unknown_path_is_not_cached():
    match = tree_of(device=100).match(path("D1", "D2"))
    assert match.nodes == ()
    assert (match.cached_tokens, match.computed_tokens) == (0, 12)


def test_a_path_asked_for_once_is_cached_with_every_prefix_of_it():
    tree = tree_of(device=100)
    ask(tree, path("D1", "D2"))
    assert cached(tree, "D1", "D2") == 12
    assert cached(tree, "D1") == cached(tree, "D1", "D3") == 8
    assert cached(tree, "D2") == 4


def test_a_document_behind_another_one_is_another_node():
    tree = tree_of(device=100)
    ask(tree, path("D1", "D3"))
    ask(tree, path("D2", "D3"))
    assert len(tree) == 5


def test_two_spellings_of_one_document_share_nothing():
    tree = tree_of(device=100)
    ask(tree, [S, Segment("D1", 4, b"one")])
    assert tree.match([S, Segment("D1", 4, b"two")]).cached_tokens == 4


def test_the_unit_is_the_block_and_a_block_belongs_to_the_segment_of_its_last_token():
    tree = tree_of(block_tokens=3, device=100)
    nodes = tree.use(tree.match(path("D1", "D2")))  # 4 + 4 + 4 tokens: 1 + 1 + 2 blocks
    assert [node.blocks for node in nodes] == [1, 1, 2]
    tree.admit(nodes)
    assert tree.match(path("D1")).cached_tokens == 6


def test_the_leaf_leaves_from_its_last_block_backwards_and_only_as_far_as_it_must():
    tree = tree_of(device=13)
    ask(tree, path("D1", "D2"))
    moves = ask(tree, path("D3"))
    assert said(moves) == [("free", "D2", "device")]
    assert [(move.start, move.end) for move in moves] == [(1, 4)]
    assert cached(tree, "D1", "D2") == 9


def test_a_parent_stays_as_long_as_a_child_is_there():
    tree = tree_of("lru", device=12)
    ask(tree, path("D1", "D2"))
    ask(tree, path("D1"))  # D1 is newer than D2, and S newer than both
    ask(tree, path("D3", tokens=8))
    assert cached(tree, "D1", "D2") == 4


def test_what_the_device_frees_the_host_gets_once():
    tree = tree_of(device=8, host=100)
    ask(tree, path("D1"))
    assert said(ask(tree, path("D2"))) == [("store", "D1", "device"), ("free", "D1", "device")]
    assert said(ask(tree, path("D1"))) == [
        ("store", "D2", "device"),
        ("free", "D2", "device"),
        ("load", "D1", "host"),
    ]
    assert said(ask(tree, path("D2"))) == [("free", "D1", "device"), ("load", "D2", "host")]


def test_a_full_host_passes_on_to_the_disk():
    tree = tree_of(device=8, host=4, disk=100)
    for name in ("D1", "D2", "D3"):
        moves = ask(tree, path(name))
    assert ("store", "D1", "host") in said(moves)
    match = tree.match(path("D1"))
    assert match.blocks == (4, 0, 4)
    assert match.cached_tokens == 8


def test_a_match_counts_each_block_where_it_is_read_from():
    tree = tree_of(device=8, host=100)
    ask(tree, path("D1"))
    ask(tree, path("D2"))
    assert tree.match(path("D1")).blocks == (4, 4, 0)


def test_a_pinned_path_is_not_evicted():
    tree = tree_of(device=12)
    ask(tree, path("D1"))
    with tree.pinned(tree.match(path("D1")).nodes):
        ask(tree, path("D2"))
        ask(tree, path("D3"))
        assert cached(tree, "D1") == 8
    ask(tree, path("D4", tokens=8))
    assert cached(tree, "D1") == 4


def test_blocks_can_be_reserved_all_or_nothing():
    tree = tree_of(device=12)
    ask(tree, path("D1", "D2"))
    moves = tree.reserve(DEVICE, 6)
    assert sum(move.blocks for move in moves) == 6
    with tree.pinned(tree.match(path("D1")).nodes):
        before = tree.used(DEVICE)
        with pytest.raises(ValueError, match="running requests"):
            tree.reserve(DEVICE, 8)
        assert tree.used(DEVICE) == before


def test_a_forgotten_document_leaves_every_tier_with_all_that_stood_on_it():
    tree = tree_of(device=12, host=100)
    ask(tree, path("D1", "D2"))
    ask(tree, path("D3", tokens=6))
    moves = tree.forget("D1")
    assert {move.node.segment.name for move in moves} == {"D1", "D2"}
    assert {move.kind for move in moves} == {MoveKind.FREE}
    assert cached(tree, "D1", "D2") == 4
    tree.check()


def test_a_document_in_use_is_not_forgotten():
    tree = tree_of(device=100)
    ask(tree, path("D1", "D2"))
    with (
        tree.pinned(tree.match(path("D1", "D2")).nodes),
        pytest.raises(ValueError, match="running request"),
    ):
        tree.forget("D1")
    assert cached(tree, "D1", "D2") == 12


def test_only_the_first_documents_of_a_path_are_kept_if_so_asked():
    tree = KnowledgeTree({DEVICE: 100}, POLICIES["lru"], block_tokens=1, cache_depth=2)
    ask(tree, path("D1", "D2", "D3"))
    assert cached(tree, "D1", "D2", "D3") == 8


def test_uses_survive_eviction_and_end_with_the_window():
    tree = KnowledgeTree({DEVICE: 8}, POLICIES["lru"], block_tokens=1, frequency_window=6)
    (_, first) = tree.use(tree.match(path("D1")))
    tree.use(tree.match(path("D1")))
    assert first.uses == 2
    tree.use(tree.match(path("D2")))
    assert first.uses == 2
    tree.use(tree.match(path("D2")))
    assert first.uses == 1
    tree.use(tree.match(path("D2")))
    assert tree.match(path("D1")).nodes == tree.match(path()).nodes  # forgotten: it held nothing


def test_the_cost_of_a_node_is_the_mean_over_the_prefills_that_computed_it():
    tree = tree_of(device=0)
    (_, node) = tree.use(tree.match(path("D1")), prefill_s=0.8)  # 8 tokens
    assert node.cost_s_per_token == pytest.approx(0.1)
    tree.use(tree.match(path("D1")), prefill_s=2.4)
    assert node.cost_s_per_token == pytest.approx(0.2)


def test_a_cached_node_keeps_its_cost():
    tree = tree_of(device=100)
    ask(tree, path("D1"), prefill_s=0.8)
    (_, node) = tree.use(tree.match(path("D1")), prefill_s=99.0)
    assert node.cost_s_per_token == pytest.approx(0.1)
    assert node.prefills == 1


def test_pgdsf_priority_is_clock_plus_uses_times_cost_and_the_clock_follows_what_leaves():
    """Formulas 2 to 4 and Algorithm 1, on numbers small enough for a head."""
    tree = tree_of("pgdsf", device=12)
    policy = tree.policy(DEVICE)
    nodes = {}
    for name, prefill_s in (("D1", 0.8), ("D2", 0.8)):
        nodes[name] = tree.use(tree.match(path(name)), prefill_s)[1]
        tree.admit(tree.match(path(name)).nodes)
    assert policy.rank_of(nodes["D1"]) == pytest.approx(0.1)  # 0 + 1 x 0.8 s / 8 tokens
    assert policy.rank_of(nodes["D2"]) == pytest.approx(0.2)  # S was cached: 0.8 s / 4 tokens
    ask(tree, path("D1"))
    assert policy.rank_of(nodes["D1"]) == pytest.approx(0.2)  # 0 + 2 x 0.1
    ask(tree, path("D1"))
    assert policy.rank_of(nodes["D1"]) == pytest.approx(0.3)
    moves = ask(tree, path("D3"), prefill_s=0.4)
    assert said(moves) == [("free", "D2", "device")]
    assert policy.clock == pytest.approx(0.2)
    assert policy.rank_of(tree.match(path("D3")).nodes[1]) == pytest.approx(0.3)  # 0.2 + 1 x 0.1


NAMES = "ABCDE"
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
TOKENS = {"A": 1, "B": 2, "C": 5, "D": 7, "E": 3}  # with blocks of 3, some own none


class AnyCallsInAnyOrder(RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.tree = KnowledgeTree(
            {DEVICE: 6, HOST: 5, DISK: 4},
            POLICIES[self.policy],
            block_tokens=3,
            frequency_window=12,
        )
        self.running: list[tuple[Node, ...]] = []
        self.held: dict[tuple[Node, Tier], int] = {}

    def steps(self, names: list[str]) -> list[Segment]:
        return [Segment("S", 4), *(Segment(name, TOKENS[name]) for name in names)]

    def carry_out(self, moves: list[Move]) -> None:
        """What a backend would do, refusing what cannot be done."""
        for move in moves:
            source = self.held.get((move.node, move.source), 0)
            assert 0 <= move.start < move.end, f"{move} moves nothing"
            assert source >= move.end, f"{move} moves what is not there"
            if move.kind is MoveKind.FREE:
                assert source == move.end
                self.held[move.node, move.source] = move.start
            else:
                assert move.target is not None
                self.held[move.node, move.target] = move.end

    @rule(names=paths, prefill_s=st.floats(0, 2))
    def use_and_admit(self, names: list[str], prefill_s: float) -> None:
        match = self.tree.match(self.steps(names))
        nodes = self.tree.use(match, prefill_s)
        before = {node: node.resident[0] for node in nodes}
        moves = self.tree.admit(nodes)
        for move in moves:
            if move.kind is MoveKind.LOAD:
                assert move.node in before
        self.carry_out([move for move in moves if move.kind is not MoveKind.LOAD])
        for node in nodes:
            self.held[node, DEVICE] = node.resident[0]

    @rule(names=paths)
    def use_alone(self, names: list[str]) -> None:
        self.tree.use(self.tree.match(self.steps(names)), 0.1)

    @rule(names=paths)
    def begin(self, names: list[str]) -> None:
        nodes = self.tree.match(self.steps(names)).nodes
        self.tree.pin(nodes)
        self.running.append(nodes)

    @precondition(lambda self: self.running)
    @rule()
    def end(self) -> None:
        self.tree.unpin(self.running.pop())

    @rule(tier=st.sampled_from(list(Tier)), blocks=st.integers(0, 7))
    def reserve(self, tier: Tier, blocks: int) -> None:
        before = self.tree.used(tier)
        try:
            self.carry_out(self.tree.reserve(tier, blocks))
        except ValueError:
            assert self.tree.used(tier) == before
        else:
            assert self.tree.capacity(tier) - self.tree.used(tier) >= blocks

    @rule(tier=st.sampled_from(list(Tier)), blocks=st.integers(0, 9))
    def resize(self, tier: Tier, blocks: int) -> None:
        before = self.tree.capacity(tier)
        try:
            self.carry_out(self.tree.set_capacity(tier, blocks))
        except ValueError:
            assert self.tree.capacity(tier) == before

    @rule(name=st.sampled_from(NAMES))
    def forget(self, name: str) -> None:
        try:
            self.carry_out(self.tree.forget(name))
        except ValueError:
            assert self.running
        else:
            assert self.tree.match(self.steps([name])).cached_tokens <= 4

    @invariant()
    def every_invariant_holds(self) -> None:
        self.tree.check()

    @invariant()
    def the_moves_tell_what_is_where(self) -> None:
        for (node, tier), blocks in self.held.items():
            if node.parent is not None:
                assert node.resident[list(Tier).index(tier)] == blocks
            else:
                assert not blocks


@pytest.mark.parametrize("policy", POLICIES)
def test_invariants_hold_under(policy: str):
    machine = type("Machine", (AnyCallsInAnyOrder,), {"policy": policy})
    machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    machine.TestCase().runTest()
