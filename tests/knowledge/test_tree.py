"""The knowledge tree keeps its invariants whatever its owner asks, and says what is to be freed.

The owner knows where each block is: it splits nodes, and holds, grows and drops their blocks. An
eviction frees blocks and copies none.
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from every_policy import EVERY_POLICY, policy_for_tree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from thoroughness import examples

from ragcache_engine.knowledge import (
    POLICIES,
    FreedBlocks,
    KnowledgeTree,
    Node,
    Segment,
    Tier,
)
from ragcache_engine.knowledge.eviction import HalfLife
from ragcache_engine.knowledge.tree import REMEMBERED_PER_BLOCK

DEVICE, HOST, DISK = Tier


def tree_of(policy: str = "lru", block_tokens: int = 1, **blocks: int) -> KnowledgeTree:
    return KnowledgeTree(
        {Tier(name): count for name, count in blocks.items()},
        policy_for_tree(policy),
        block_tokens=block_tokens,
    )


def chain(tree: KnowledgeTree, *names: str, tokens: int = 4) -> list[Node]:
    """Nodes one below the other, pinned."""
    nodes, node = [], tree.root
    for name in names:
        node = tree.child(node, Segment(name, tokens))
        nodes.append(node)
    tree.pin(nodes)
    return nodes


def told(freed: list[FreedBlocks]) -> list[tuple[str, str, int, int]]:
    return [(each.node.segment.name, each.tier.value, each.start, each.end) for each in freed]


def test_a_node_nobody_used_or_pinned_is_forgotten_when_its_last_pin_goes():
    gone: list[Node] = []
    tree = KnowledgeTree({}, POLICIES["lru"], block_tokens=1, forgotten=gone.append)
    upper, lower = chain(tree, "A", "B")
    tree.unpin([upper])
    assert not gone
    tree.unpin([lower])
    assert gone == [lower, upper]
    assert len(tree) == 0


def test_asking_for_a_child_twice_gives_the_same_one():
    tree = tree_of(device=8)
    assert tree.child(tree.root, Segment("A", 4)) is tree.child(tree.root, Segment("A", 4))
    assert len(tree) == 1


def test_what_is_held_is_there_without_asking_the_policy():
    tree = tree_of(device=8)
    upper, lower = chain(tree, "A", "B")
    tree.hold(lower, DEVICE, 4)
    assert tree.used(DEVICE) == 0  # what it stands on is not there
    tree.hold(upper, DEVICE, 4)
    tree.hold(lower, DEVICE, 3)
    tree.hold(lower, DEVICE, 2)  # no way to make it less
    assert (upper.resident[0], lower.resident[0]) == (4, 3)
    tree.check()


def test_a_node_names_the_documents_in_it_and_those_above():
    tree = tree_of(device=8)
    upper, lower = chain(tree, "A", "B")
    unknown = tree.child(lower, Segment("", 2, b"digest"))
    assert (repr(lower), repr(unknown)) == ("Node(A/B)", "Node(A/B/[2 tokens])")
    upper.add_documents(["A", "C"])
    assert repr(lower) == "Node(A+C/B)"
    half = tree.split(upper, Segment("A", 3), Segment("A", 1))
    assert half.documents == upper.documents == ("A", "C")


def test_nothing_is_held_of_a_node_the_tree_has_forgotten():
    tree = tree_of(device=8)
    (node,) = chain(tree, "A")
    tree.unpin([node])
    tree.hold(node, DEVICE, 4)
    assert tree.used(DEVICE) == 0


def test_blocks_grow_by_freeing_others_and_copy_nothing():
    tree = tree_of(device=8, host=4)
    (first,), (second,) = chain(tree, "A"), chain(tree, "B")
    assert tree.grow(first, HOST, 4) == []
    tree.unpin([first])
    assert told(tree.grow(second, HOST, 3)) == [("A", "host", 1, 4)]
    assert (first.resident[1], second.resident[1]) == (1, 3)


def test_a_policy_that_prefers_what_is_there_is_overruled_by_force():
    tree = tree_of("halflife", host=4)
    (favourite,), (newcomer,) = chain(tree, "A"), chain(tree, "B")
    tree.grow(favourite, HOST, 4)
    for _ in range(3):
        tree.record_use([favourite], 1, 0.0)
    tree.record_use([newcomer], 0, 0.0)
    tree.unpin([favourite])
    assert tree.grow(newcomer, HOST, 4) == []
    assert newcomer.resident[1] == 0
    assert told(tree.grow(newcomer, HOST, 4, force=True)) == [("A", "host", 0, 4)]
    assert newcomer.resident[1] == 4


def test_evicting_takes_from_the_leaves_upwards_and_spares_the_pinned():
    tree = tree_of(device=100)
    nodes = chain(tree, "A", "B", "C")
    for node in nodes:
        tree.hold(node, DEVICE, 4)
    assert tree.evict(DEVICE, 5) == []
    tree.unpin(nodes[1:])
    assert told(tree.evict(DEVICE, 5)) == [("C", "device", 0, 4), ("B", "device", 3, 4)]
    assert told(tree.evict(DEVICE, 100)) == [("B", "device", 0, 3)]


def test_what_stood_on_dropped_blocks_goes_with_them_unless_another_tier_carries_it():
    tree = tree_of(device=100, host=100)
    upper, lower = chain(tree, "A", "B")
    for node in (upper, lower):
        tree.hold(node, DEVICE, 4)
    tree.grow(upper, HOST, 4)
    tree.grow(lower, HOST, 4)
    assert told(tree.drop(upper, DEVICE, 2)) == [("A", "device", 2, 4), ("B", "device", 0, 4)]
    assert told(tree.drop(upper, HOST, 3)) == [("A", "host", 3, 4), ("B", "host", 0, 4)]
    tree.check()


@pytest.mark.parametrize("tokens", [4, 1], ids=["each owns blocks", "most own none"])
def test_a_path_of_any_length_is_dropped_at_once(tokens: int):
    depth = 3_000
    tree = tree_of(block_tokens=4, device=depth, host=depth)
    nodes = chain(tree, *map(str, range(depth)), tokens=tokens)
    for node in nodes:
        tree.hold(node, DEVICE, node.blocks)
    tree.unpin(nodes)
    first = next(node for node in nodes if node.blocks)
    freed = tree.drop(first, DEVICE)
    assert [each.node for each in freed] == [node for node in nodes if node.blocks]
    assert tree.used(DEVICE) == 0


def test_removing_a_node_removes_all_below_it_once():
    gone: Counter[Node] = Counter()
    tree = KnowledgeTree(
        {DEVICE: 100}, POLICIES["lru"], block_tokens=1,
        forgotten=lambda node: gone.update([node]),
    )  # fmt: skip
    nodes = chain(tree, "A", "B", "C")
    for node in nodes:
        tree.hold(node, DEVICE, 4)
    tree.record_use(nodes, 0, 1.0)
    tree.unpin(nodes)
    freed = tree.remove([nodes[1], nodes[2]])
    assert {each.node for each in freed} == set(nodes[1:])
    assert gone == Counter(nodes[1:])
    assert len(tree) == 1
    tree.check()


def test_the_halves_of_a_node_keep_its_blocks_where_they_are():
    tree = tree_of(block_tokens=2, device=100, host=100, disk=100)
    (node,) = chain(tree, "A", tokens=10)
    tree.hold(node, DEVICE, 5)
    tree.grow(node, HOST, 4)
    tree.grow(node, DISK, 1)
    tree.record_use([node], 0, 0.5)
    upper = tree.split(node, Segment("A", 6, b"upper"), Segment("A", 4, b"lower"))
    assert (upper.resident, node.resident) == ([3, 3, 1], [2, 1, 0])
    assert (upper.blocks, node.blocks) == (3, 2)
    assert (upper.uses, node.uses) == (0, 1)
    assert (upper.pins, node.pins) == (0, 1)
    assert upper.cost_s_per_token == node.cost_s_per_token == 0.5
    assert node.parent is upper
    tree.check()


@pytest.mark.parametrize(("upper", "lower"), [(3, 5), (4, 5), (9, 1)])
def test_a_node_is_split_between_blocks_and_nothing_is_left_over(upper: int, lower: int):
    tree = tree_of(block_tokens=2, device=100)
    (node,) = chain(tree, "A", tokens=8)
    with pytest.raises(ValueError, match="no split"):
        tree.split(node, Segment("u", upper), Segment("l", lower))
    with pytest.raises(ValueError, match="node of the tree"):
        tree.split(tree.root, Segment("u", 0), Segment("l", 0))


def test_a_half_without_blocks_is_refused_or_keeps_the_tree_in_order():
    tree = tree_of(block_tokens=3, device=20, host=20)
    node = tree.child(tree.root, Segment("A", 7))
    below = tree.child(node, Segment("B", 5))
    tree.pin([node, below])
    tree.hold(node, DEVICE, 2)
    tree.grow(below, HOST, 2)
    with contextlib.suppress(ValueError):
        tree.split(node, Segment("A", 6, b"upper"), Segment("A", 1, b"lower"))
    tree.check()


@pytest.mark.parametrize("policy", ["arc", "gdsf", "lfu", "pgdsf", "sieve"])
def test_what_came_in_for_a_use_counts_as_used_once_when_that_is_over(policy: str):
    tree = tree_of(policy, host=8)
    for name in "AABC":
        (node,) = chain(tree, name)
        whole = int(node.resident[1] == 4)
        tree.grow(node, HOST, 4, in_use=True)
        tree.record_use([node], whole, 0.1)
        tree.unpin([node])
    held = {node.segment.name for node in tree.root.downwards() if node.resident[1]}
    assert held == {"A", "C"}


def test_a_newcomer_is_judged_with_the_use_it_comes_for():
    tree = tree_of("halflife", host=4)
    (resident,), (newcomer,) = chain(tree, "A"), chain(tree, "B")
    for node in (newcomer, resident):
        for _ in range(4):
            tree.record_use([node], 0, 0.0)
    tree.grow(resident, HOST, 4)
    tree.unpin([resident])
    assert tree.grow(newcomer, HOST, 4) == []
    assert told(tree.grow(newcomer, HOST, 4, in_use=True)) == [("A", "host", 0, 4)]


def test_tiers_that_share_their_popularity_count_a_use_once():
    shared, alone = tree_of("halflife", device=9, host=9, disk=9), tree_of("halflife", device=9)
    policies = []
    for tree in (shared, alone):
        nodes = {name: chain(tree, name)[0] for name in "ABC"}
        for name in "AABACBAAB":
            tree.record_use([nodes[name]], 0, 0.1)
        policy = tree.policy(DEVICE)
        assert isinstance(policy, HalfLife)
        policies.append([policy.compute_priority(node) for node in nodes.values()])
    assert policies[0] == policies[1]


def test_tiers_share_no_more_than_their_popularity():
    tree = tree_of("halflife", device=9, host=9)
    (node,) = chain(tree, "A")
    tree.record_use([node], 0, 0.1)
    tree.grow(node, HOST, 4)
    tree.unpin([node])
    assert tree.evict(DEVICE, 1) == []
    assert len(tree.evict(HOST, 1)) == 1


NAMES = "ABCD"
TOKENS = {"A": 2, "B": 3, "C": 9, "D": 7}  # with blocks of 3, some own none
QUOTAS = {HOST: 4, DISK: 3}
OWNERS = (None, "shop", "press")


class AnyCallsInAnyOrder(RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.gone: Counter[Node] = Counter()
        self.known: set[Node] = set()
        self.tree = KnowledgeTree(
            {DEVICE: 8, HOST: 6, DISK: 5},
            policy_for_tree(self.policy),
            block_tokens=3,
            frequency_window=12,
            forgotten=lambda node: self.gone.update([node]),
            quotas=QUOTAS,
        )
        self.running: list[list[Node]] = []
        self.orders: list[tuple[list[Node], Tier]] = []
        self.held: Counter[tuple[Node, Tier]] = Counter()
        self.splits = 0

    def release(self, freed: list[FreedBlocks]) -> None:
        for each in freed:
            assert 0 <= each.start < each.end
            assert self.held[each.node, each.tier] == each.end, "it frees what is not there"
            self.held[each.node, each.tier] = each.start

    def one_of_the_nodes(self, which: int) -> Node | None:
        nodes = sorted(self.present(), key=lambda node: (node.end, node.segment))
        return nodes[which % len(nodes)] if nodes else None

    def present(self) -> list[Node]:
        return [node for node in self.tree.root.downwards() if node is not self.tree.root]

    @rule(
        names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
        owner=st.sampled_from(OWNERS),
    )
    def begin(self, names: list[str], owner: str | None) -> None:
        """Walk down the path, through the halves of what was split. No two owners share a node."""
        node, nodes = self.tree.root, []
        for name in names:
            left, name = TOKENS[name], f"{name} of {owner}"
            while left:
                below = [
                    child
                    for child in (node.children or {}).values()
                    if child.segment.name == name and child.segment.tokens <= left
                ]
                node = below[0] if below else self.tree.child(node, Segment(name, left), owner)
                left -= node.segment.tokens
                nodes.append(node)
        self.tree.pin(nodes)
        self.known.update(nodes)
        self.running.append(nodes)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), uses=st.integers(0, 2), whole=st.integers(0, 2))
    def end(self, which: int, uses: int, whole: int) -> None:
        nodes = self.running.pop(which % len(self.running))
        for _ in range(uses):
            self.tree.record_use(nodes, whole, 0.1)
        self.tree.unpin(nodes)

    @rule(which=st.integers(0, 99), at=st.integers(1, 3))
    def split(self, which: int, at: int) -> None:
        node = self.one_of_the_nodes(which)
        # What has no blocks of its own is never cut, nor is a half without any left.
        if node is None or at >= node.blocks or not node.segment.tokens > at * 3:
            return
        whole = node.segment
        before, blocks = list(node.resident), node.blocks
        self.splits += 1
        mark = b"%d" % self.splits
        upper = self.tree.split(
            node,
            Segment(whole.name, at * 3, mark),
            Segment(whole.name, whole.tokens - at * 3, mark),
        )
        assert upper.blocks + node.blocks == blocks
        self.known.add(upper)
        for rank, tier in enumerate(Tier):
            assert upper.resident[rank] + node.resident[rank] == before[rank]
            self.held[upper, tier] = upper.resident[rank]
            self.held[node, tier] = node.resident[rank]
        self.tree.pin([upper])
        for nodes, _ in self.orders:  # both halves are kept
            if node in nodes:
                nodes.insert(nodes.index(node), upper)
        for nodes in self.running:
            if node in nodes:
                nodes.insert(nodes.index(node), upper)
                self.tree.pin([upper])
        with self.tree.pinned([node]):
            pass  # what holds nothing and was never used is forgotten
        self.tree.unpin([upper])

    @rule(which=st.integers(0, 99), tier=st.sampled_from(list(Tier)), blocks=st.integers(0, 4))
    def hold(self, which: int, tier: Tier, blocks: int) -> None:
        node = self.one_of_the_nodes(which)
        room = self.tree.capacity(tier) - self.tree.used(tier)
        if node is not None and node.owner and tier in QUOTAS:
            room = min(room, QUOTAS[tier] - self.tree.used_by(tier)[node.owner])
        if node is None or blocks - node.resident[list(Tier).index(tier)] > room:
            return  # whoever holds blocks holds no more than there may be
        self.tree.hold(node, tier, blocks)
        self.held[node, tier] = node.resident[list(Tier).index(tier)]

    @rule(
        which=st.integers(0, 99),
        tier=st.sampled_from(list(Tier)),
        blocks=st.integers(0, 4),
        force=st.booleans(),
    )
    def grow(self, which: int, tier: Tier, blocks: int, force: bool) -> None:
        node = self.one_of_the_nodes(which)
        if node is None:
            return
        before, kept = self.held[node, tier], self.kept_whole()
        freed = self.tree.grow(node, tier, blocks, force=force)
        assert not any((each.node, each.tier) in kept for each in freed)
        self.release(freed)
        after = node.resident[list(Tier).index(tier)]
        assert after <= max(before, blocks)
        assert after >= self.held[node, tier]
        self.held[node, tier] = after

    @rule(which=st.integers(0, 99), tier=st.sampled_from(list(Tier)))
    def keep(self, which: int, tier: Tier) -> None:
        node = self.one_of_the_nodes(which)
        if node is not None:
            path = list(reversed(list(node.upwards())))
            self.tree.keep(path, tier)
            self.orders.append((path, tier))

    @precondition(lambda self: self.orders)
    @rule(which=st.integers(0, 9))
    def let_go(self, which: int) -> None:
        self.tree.let_go(*self.orders.pop(which % len(self.orders)))

    def kept_whole(self) -> dict[tuple[Node, Tier], int]:
        """The blocks of what is kept where all blocks of its path are in the tier."""
        blocks = {}
        for path, tier in self.orders:
            rank = list(Tier).index(tier)
            if all(node.resident[rank] == node.blocks for node in path):
                blocks.update({(node, tier): node.blocks for node in path})
        return blocks

    @rule(tier=st.sampled_from(list(Tier)), blocks=st.integers(0, 9))
    def evict(self, tier: Tier, blocks: int) -> None:
        before, kept = self.tree.used(tier), self.kept_whole()
        freed = self.tree.evict(tier, blocks)
        assert not any((each.node, each.tier) in kept for each in freed)
        assert sum(each.blocks for each in freed if each.tier is tier) >= min(
            blocks, before - self.tree.used(tier)
        )
        self.release(freed)
        if before - self.tree.used(tier) < blocks:
            rank = list(Tier).index(tier)
            assert not any(
                node.resident[rank]
                and not node.pins
                and not node.kept[rank]
                and not node.below[rank]
                for node in self.present()
            ), "it gave up too early"

    @rule(which=st.integers(0, 99), tier=st.sampled_from(list(Tier)), keep=st.integers(0, 3))
    def drop(self, which: int, tier: Tier, keep: int) -> None:
        node = self.one_of_the_nodes(which)
        if node is not None:
            self.release(self.tree.drop(node, tier, keep))
            assert node.resident[list(Tier).index(tier)] <= keep

    @rule(which=st.lists(st.integers(0, 99), max_size=3))
    def remove(self, which: list[int]) -> None:
        doomed = [node for node in map(self.one_of_the_nodes, which) if node is not None]
        if any(below.pins for node in doomed for below in node.downwards()):
            return
        self.release(self.tree.remove(doomed))
        assert all(self.gone[node] == 1 for node in doomed)
        for place in reversed(range(len(self.orders))):  # forgetting ends what keeps
            path, tier = self.orders[place]
            if any(self.gone[node] for node in path):
                self.tree.let_go([node for node in path if not self.gone[node]], tier)
                del self.orders[place]

    @rule(tier=st.sampled_from(list(Tier)), blocks=st.integers(0, 9))
    def resize(self, tier: Tier, blocks: int) -> None:
        before = self.tree.capacity(tier)
        try:
            self.release(self.tree.set_capacity(tier, blocks))
        except ValueError:
            assert self.tree.capacity(tier) == before
        else:
            assert self.tree.used(tier) <= blocks

    @invariant()
    def every_invariant_holds(self) -> None:
        self.tree.check()

    @invariant()
    def the_freed_blocks_tell_what_is_where(self) -> None:
        for (node, tier), blocks in self.held.items():
            assert node.resident[list(Tier).index(tier)] == blocks

    @invariant()
    def the_forgotten_are_told_once(self) -> None:
        present = set(self.present())
        assert present <= self.known
        assert self.gone == Counter(self.known - present)
        assert all(node.parent is None and not any(node.resident) for node in self.gone)


@pytest.mark.parametrize("policy", EVERY_POLICY)
@pytest.mark.slow
def test_the_tree_keeps_its_invariants_under(policy: str):
    machine = type("Machine", (AnyCallsInAnyOrder,), {"policy": policy})
    machine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
    machine.TestCase().runTest()


def test_what_is_kept_in_a_tier_is_not_evicted_there_until_it_is_let_go():
    tree = tree_of(device=8, host=8)
    system, lead = chain(tree, "system", "lead")
    (other,) = chain(tree, "other")
    tree.keep([system, lead], HOST)
    assert (tree.kept(HOST), tree.kept(DEVICE)) == (8, 0)
    for node in (system, lead):
        tree.grow(node, HOST, 4)
        tree.hold(node, DEVICE, 4)
    tree.unpin([system, lead])
    assert tree.grow(other, HOST, 4, force=True) == []
    assert (other.resident[1], tree.evict(HOST, 8)) == (0, [])
    assert len(tree.evict(DEVICE, 8)) == 2  # it is kept in the tier named only
    tree.let_go([system, lead], HOST)
    assert tree.kept(HOST) == 0
    assert told(tree.evict(HOST, 8)) == [("lead", "host", 0, 4), ("system", "host", 0, 4)]
    with pytest.raises(ValueError, match="not kept"):
        tree.let_go([other], HOST)
    tree.check()


def test_what_is_kept_is_remembered_before_it_has_blocks_and_removed_when_it_is_forgotten():
    tree = tree_of(disk=8)
    (node,) = chain(tree, "A")
    tree.keep([node], DISK)
    tree.unpin([node])
    assert (len(tree), tree.kept(DISK)) == (1, 4)
    half = tree.split(node, Segment("A", 1), Segment("A", 3))
    assert (half.kept, tree.kept(DISK)) == (node.kept, 4)
    tree.remove([node])
    assert tree.kept(DISK) == 1
    tree.let_go([half], DISK)
    assert (len(tree), tree.kept(DISK)) == (0, 0)


def test_what_is_remembered_is_bounded_by_what_the_tiers_hold():
    tree = KnowledgeTree({Tier.DEVICE: 400}, POLICIES["lru"], block_tokens=16)
    for number in range(2_000):
        path = [tree.child(tree.root, Segment(f"document {number}", 64))]
        with tree.pinned(path):
            tree.record_use(path, cached_nodes=0, cost_s_per_token=0.001)
    assert len(tree) == REMEMBERED_PER_BLOCK * 400 / 4
    tree.check()


def test_an_owner_that_reaches_its_quota_makes_room_of_its_own():
    tree = KnowledgeTree({HOST: 12}, policy_for_tree("lru"), block_tokens=1, quotas={HOST: 8})
    nodes = {}
    for name, owner in (("a", "press"), ("b", "shop"), ("c", "shop"), ("d", "shop"), ("e", None)):
        node = nodes[name] = tree.child(tree.root, Segment(name, 4), owner)
        freed = tree.grow(node, HOST, 4, force=True)
        tree.record_use([node], 0, 0.1)
        tree.check()
        # The oldest of all is the press's: its owner has room, and the shop makes its own.
        assert told(freed) == (
            [("b", "host", 0, 4)] if name == "d" else [("a", "host", 0, 4)] * (name == "e")
        )
    assert tree.used_by(HOST) == {"shop": 8}
    assert tree.used(HOST) == 12


def test_an_owner_whose_blocks_are_all_pinned_gets_no_more_than_its_quota():
    tree = KnowledgeTree({HOST: 12}, policy_for_tree("lru"), block_tokens=1, quotas={HOST: 6})
    first, second = (tree.child(tree.root, Segment(name, 4), "shop") for name in "ab")
    with tree.pinned([first, second]):
        tree.grow(first, HOST, 4, force=True)
        assert tree.grow(second, HOST, 4, force=True) == []
        assert second.resident[1] == 2
    tree.check()
