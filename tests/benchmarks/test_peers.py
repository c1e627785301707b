"""benchmarks/peers: what sets the policies of others apart, and that each keeps a tree's invariants."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from peers import PEERS
from peers.arc import ARC
from peers.ghosts import Ghosts

from ragcache_engine.knowledge import DocumentCache, KnowledgeTree, Node, Segment, Tier
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.simulation.replay import replay
from ragcache_engine.simulation.traces import Trace, draw_drifting


class Flat:
    """Documents of one token, one a request."""

    def __init__(self, policy: str, capacity: int) -> None:
        self.cache = DocumentCache(capacity, PEERS[policy], block_tokens=1)

    @property
    def policy(self) -> EvictionPolicy:
        return self.cache.policy

    def ask(self, names: Iterable[str], prefill_s: float = 1.0) -> Flat:
        for name in names:
            nodes = self.cache.use(self.cache.match([Segment(name, 1)]), prefill_s)
            self.cache.admit(nodes)
        return self

    def held(self) -> set[str]:
        return {node.segment.name for node in self.nodes() if node.resident[0]}

    def nodes(self) -> list[Node]:
        return [node for node in self.cache.tree.root.downwards() if node.parent]


@pytest.mark.parametrize("policy", PEERS)
def test_a_document_asked_for_again_and_again_is_kept(policy: str):
    flat = Flat(policy, 8)
    for number in range(30):
        flat.ask(["favourite", "favourite", f"passing {number}"])
    assert "favourite" in flat.held()


@pytest.mark.parametrize("policy", PEERS)
def test_choosing_a_victim_twice_chooses_the_same(policy: str):
    flat = Flat(policy, 4).ask("ABCDAAB")
    first, second = (flat.policy.victim(lambda node: not node.pins) for _ in range(2))
    assert first is not None
    assert first is second


@pytest.mark.parametrize("policy", PEERS)
def test_nobody_is_evicted_who_may_not_be(policy: str):
    flat = Flat(policy, 4).ask("ABCD")
    assert flat.policy.victim(lambda node: False) is None


@pytest.mark.parametrize("policy", PEERS)
def test_a_policy_forgets_nodes_with_the_tree(policy: str):
    cache = DocumentCache(4, PEERS[policy], block_tokens=1, frequency_window=16)
    for number in range(5_000):
        cache.admit(cache.use(cache.match([Segment(str(number), 1)]), 1.0))
    kept = cache.policy.__dict__.values()
    assert all(len(part) < 4_000 for part in kept if hasattr(part, "__len__"))


def test_the_hand_of_sieve_spares_the_used_once_and_goes_on_from_where_it_stood():
    flat = Flat("sieve", 3).ask("ABCA")
    assert flat.ask("D").held() == {"A", "C", "D"}  # A is spared, B goes
    assert flat.ask("E").held() == {"A", "D", "E"}  # the hand has passed A and goes on to C
    assert flat.ask("FG").held() == {"A", "F", "G"}


def test_a_use_in_sieve_moves_nothing():
    assert Flat("sieve", 3).ask("ABCBB").ask("D").held() == {"B", "C", "D"}


def test_s3fifo_lets_what_is_used_once_leave_by_the_small_queue():
    flat = Flat("s3fifo", 10).ask("ABCABCABC")
    flat.ask(str(number) for number in range(40))
    assert {"A", "B", "C"} <= flat.held()


def test_s3fifo_takes_a_ghost_straight_into_the_main_queue():
    flat = Flat("s3fifo", 10).ask("AAABBBCCC").ask("tuvwxyz")
    flat.ask("12345")  # A, B and C move on to the main queue; t and u leave, and are ghosts
    assert "u" not in flat.held()
    flat.ask(["u"]).ask("34567890")
    assert "u" in flat.held()


def test_arc_makes_room_for_recency_when_a_ghost_of_the_once_used_returns_and_takes_it_back():
    flat = Flat("arc", 4).ask("AABB").ask("CDEF")  # used again: A, B; once: E, F; ghosts: C, D
    policy = flat.policy
    assert isinstance(policy, ARC)
    assert policy.target_blocks == 0
    flat.ask("C")  # it would have hit, had the once used had more room
    assert policy.target_blocks == 1
    flat.ask("D")
    assert policy.target_blocks == 2
    assert {"C", "D"} <= flat.held()


def test_arc_gives_room_back_when_a_ghost_of_the_used_again_returns():
    flat = Flat("arc", 2).ask("AABBC")  # B is used again; C once; A left as used again
    assert flat.held() == {"B", "C"}
    policy = flat.policy
    assert isinstance(policy, ARC)
    policy._target = 2.0
    flat.ask("A")
    assert policy.target_blocks == 1.0


def test_wtinylfu_lets_no_newcomer_replace_one_used_more_often():
    flat = Flat("wtinylfu", 3).ask("AABBCC")
    assert flat.ask("123456").held() >= {"A", "B"}
    flat.ask("XXX")
    assert "X" in flat.held()


def a_document(policy: str = "arc", tokens: int = 4) -> tuple[KnowledgeTree, Node]:
    """A tree with one document, pinned."""
    tree = KnowledgeTree({Tier.DEVICE: 8}, PEERS[policy], block_tokens=1)
    node = tree.child(tree.root, Segment("A", tokens))
    tree.pin([node])
    return tree, node


def test_those_who_left_count_with_the_blocks_they_had():
    """ARC and S3-FIFO go by it."""
    (tree, node), ghosts = a_document(), Ghosts()
    ghosts.add(node)
    tree.split(node, Segment("A", 3), Segment("A", 1))
    ghosts.trim(3)
    assert ghosts.blocks == 0


def test_arc_minds_no_cut_of_a_node_that_left():
    tree, node = a_document()
    tree.record_use([node], 0, 0.1)
    tree.hold(node, Tier.DEVICE, 4)
    tree.unpin([node])
    tree.evict(Tier.DEVICE, 4)
    upper = tree.split(node, Segment("A", 3), Segment("A", 1))
    tree.hold(upper, Tier.DEVICE, 3)
    tree.hold(node, Tier.DEVICE, 1)
    tree.evict(Tier.DEVICE, 4)
    tree.check()


RECORDED = {
    "arc": (8541, 18808),
    "s3fifo": (9143, 19236),
    "sieve": (8399, 19339),
    "wtinylfu": (8596, 18643),
}
"""Token hits at room for 100 and for 400 tokens."""


def small_trace() -> Trace:
    """60 questions over 24 documents of 3 to 26 tokens, three to a question; 600 of them drawn."""
    names = [f"document {number}" for number in range(24)]
    asked = tuple(
        (names[n * n % 24], names[(n * 7 + 1) % 24], names[(n * 5 + 2) % 24]) for n in range(60)
    )
    return draw_drifting(
        Trace(asked, {name: 3 + place for place, name in enumerate(names)}), 600, 7, every=300
    )


@pytest.mark.parametrize("name", PEERS)
def test_the_recorded_hits_have_not_moved(name: str):
    hits = tuple(
        replay(small_trace(), capacity, PEERS[name]).cached_tokens for capacity in (100, 400)
    )
    assert hits == RECORDED[name]
