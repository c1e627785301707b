"""benchmarks/peers: what sets each policy apart, on cases small enough to follow by hand.

What every policy must do is shown for these too, in tests/knowledge and tests/simulation/test_replay.py.
"""

from __future__ import annotations

from every_policy import Flat
from peers import PEERS
from peers.arc import ARC
from peers.ghosts import Ghosts

from ragcache_engine.knowledge import KnowledgeTree, Node, Segment, Tier


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


def a_document() -> tuple[KnowledgeTree, Node]:
    """A tree with one document, pinned."""
    tree = KnowledgeTree({Tier.DEVICE: 8}, PEERS["arc"], block_tokens=1)
    node = tree.child(tree.root, Segment("A", 4))
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
