"""What a replica says it no longer holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragcache_engine.fleet_serving.asked_documents import SETTLED_S, AskedDocuments
from ragcache_engine.fleet_serving.request_paths import NOTHING
from ragcache_engine.fleet_serving.wire import FleetRequest
from ragcache_engine.tiers.bloom_filter import BloomFilter
from ragcache_engine.tiers.counters import BlocksByTier
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot

TREE = TreeSnapshot(
    (
        DocumentBlocks(("held",), 1, 1, BlocksByTier(2, 0, 0)),
        DocumentBlocks(("below",), 1, 1, BlocksByTier(0, 2, 0)),
        DocumentBlocks(("on disk",), 1, 1, BlocksByTier(0, 0, 2)),
    ),
    age_s=0.0,
)
LATER = SETTLED_S + 1


def asking(*documents: str) -> FleetRequest:
    named = tuple((document.encode(), document) for document in documents)
    return FleetRequest("POST", "/", (), b"", NOTHING, documents=named)


def answered(*documents: str, most: int = 100) -> AskedDocuments:
    asked = AskedDocuments(most)
    for document in documents:
        asked.begin(asking(document), 0)
        asked.end(asking(document), 0)
    return asked


def test_documents_are_gone_once_they_are_in_no_fast_tier():
    asked = answered("held", "below", "on disk", "gone")
    assert asked.take_gone(TREE, LATER) == [b"on disk", b"gone"]
    assert asked.take_gone(TREE, LATER) == []
    assert len(asked) == 2


def test_a_large_tree_tells_of_its_smaller_documents_by_a_bloom_filter():
    bloom_filter = BloomFilter(1000)
    bloom_filter.add("small")
    tree = replace(TREE, other_documents=600, bloom_filter=bloom_filter)
    asked = answered("held", "small", "on disk", "gone")
    assert asked.take_gone(tree, LATER) == [b"on disk", b"gone"]


def test_a_tree_that_tells_of_some_documents_only_says_nothing():
    tree = replace(TREE, other_documents=1)
    assert answered("gone").take_gone(tree, LATER) == []


def test_what_was_asked_just_now_is_not_missed_in_a_tree_seen_before():
    asked = answered("gone")
    assert asked.take_gone(TREE, SETTLED_S / 2) == []
    assert asked.take_gone(TREE, LATER) == [b"gone"]


def test_what_was_asked_since_a_large_tree_was_last_seen_whole_is_not_missed_in_it():
    asked = answered("gone")
    assert asked.take_gone(replace(TREE, age_s=10.0), LATER) == []
    assert asked.take_gone(replace(TREE, age_s=10.0), LATER + 10) == [b"gone"]


def test_a_tree_that_nobody_has_seen_whole_says_nothing():
    assert answered("gone").take_gone(TreeSnapshot(), 100 * LATER) == []


def test_what_a_waiting_request_will_compute_is_not_missed():
    asked = AskedDocuments()
    asked.begin(asking("late"), 0)
    assert asked.take_gone(TREE, 100 * LATER) == []
    asked.end(asking("late"), 100 * LATER)
    assert asked.take_gone(TREE, 100 * LATER) == []
    assert asked.take_gone(TREE, 102 * LATER) == [b"late"]


@pytest.mark.parametrize("tree", [TREE, None])
def test_what_there_is_no_room_for_counts_as_gone(tree: TreeSnapshot | None):
    asked = answered("held", "below", "held 2", most=2)
    gone = asked.take_gone(tree, 0)
    assert gone == [b"held"]
    assert len(asked) == 2
