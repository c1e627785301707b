"""What is known of a node's blocks stays with them, also when the node is cut."""

from __future__ import annotations

from typing import Any

from ragcache_engine.tiers.node_record import NodeRecord, clear_places


def test_what_is_not_known_of_a_block_is_none():
    record: NodeRecord[Any] = NodeRecord([b"a", b"b", b"c"])
    assert record.slots == ()
    assert clear_places(record.slots, 1, 2) == []
    record.writable_slots()[1] = 7
    assert record.slots == [None, 7, None]
    assert clear_places(record.slots, 1, 2) == [7]
    assert clear_places(record.slots, 1, 2) == []
    record.writable_slots()[0] = 5
    assert clear_places(record.slots, 0, 3) == [5]
    assert clear_places(record.slots, 0, 3) == []


def test_the_halves_of_a_node_of_which_nothing_is_known_know_nothing():
    lower: NodeRecord[Any] = NodeRecord([b"a", b"b", b"c"])
    upper = lower.split(1)
    assert (upper.keys, lower.keys) == ([b"a"], [b"b", b"c"])
    assert upper.slots == lower.slots == upper.files == lower.files == ()


def test_each_half_of_a_node_keeps_the_places_of_its_blocks_and_all_marks():
    lower: NodeRecord[Any] = NodeRecord([b"a", b"b", b"c"])
    lower.marks = ("mark",)
    lower.writable_slots()[:] = [4, 5, None]
    lower.writable_files()[2] = "file"
    upper = lower.split(2)
    assert (upper.slots, lower.slots) == ([4, 5], [None])
    assert (upper.files, lower.files) == ([None, None], ["file"])
    assert upper.marks == lower.marks == ("mark",)
