"""What observers see of the knowledge tree: every block once, in slices, with the largest documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.knowledge import POLICIES, KnowledgeTree, Node, Segment, Tier
from ragcache_engine.tiers.counters import BlocksByTier, DiskState
from ragcache_engine.tiers.provenance import TracedDocument
from ragcache_engine.tiers.tree_snapshot import (
    MOST_DOCUMENTS,
    DocumentBlocks,
    ServedRequest,
    TreeSnapshot,
)
from ragcache_engine.tiers.tree_watch import TreeWatch, add_up

RESIDENT = st.tuples(*[st.integers(0, 10)] * 3)


class Grown:
    """A tree whose nodes hold what a test says. Each node stands alone below the root."""

    def __init__(self) -> None:
        self.tree = KnowledgeTree(dict.fromkeys(Tier, 10**6), POLICIES["lru"], block_tokens=16)
        self.nodes: list[Node] = []

    def add(self, document: str, device: int = 0, host: int = 0, disk: int = 0) -> Node:
        segment = Segment(document, 160, str(len(self.nodes)).encode())
        node = self.tree.child(self.tree.root, segment)
        self.tree.pin([node])
        for tier, blocks in zip(Tier, (device, host, disk), strict=True):
            self.tree.hold(node, tier, blocks)
        self.nodes.append(node)
        return node

    def watch(self, **settings: int) -> TreeWatch:
        return TreeWatch(lambda: list(self.nodes), **settings)


def test_a_block_counts_once_in_the_fastest_tier_that_has_it():
    grown = Grown()
    grown.add("a", device=3, host=5, disk=10)
    grown.add("a", host=4, disk=2)
    grown.add("", device=1)
    watch = grown.watch()
    watch.look()
    assert watch.documents == (DocumentBlocks(("a",), 2, 0, BlocksByTier(3, 6, 5)),)
    assert watch.unnamed_blocks == BlocksByTier(device=1)


def test_a_large_tree_is_seen_slice_by_slice_and_shown_when_all_was_seen():
    grown = Grown()
    for number in range(25):
        grown.add(f"d{number}", device=1 + number % 10)
    watch = grown.watch(slice_nodes=10)
    watch.look()
    assert watch.is_looking
    assert watch.documents == ()
    for _ in range(10):
        watch.advance()
    assert not watch.is_looking
    assert len(watch.documents) == 25
    watch.advance()  # nothing is under way
    assert not watch.is_looking


def test_nodes_that_go_meanwhile_are_passed_over():
    grown = Grown()
    gone = grown.add("gone", device=9)
    grown.nodes.append(gone)
    grown.add("stays", device=2)
    watch = grown.watch(slice_nodes=1)
    watch.look()
    grown.tree.unpin([gone])
    grown.tree.remove([gone])
    watch.look(10)
    # The first slice saw it; the second time it had gone.
    assert {each.documents: each.contexts for each in watch.documents} == {
        ("gone",): 1,
        ("stays",): 1,
    }


@given(
    documents=st.lists(st.tuples(st.sampled_from("abcdefgh"), RESIDENT), max_size=30),
    slice_nodes=st.integers(1, 40),
)
def test_every_block_is_shown_whatever_the_slices(
    documents: list[tuple[str, tuple[int, int, int]]], slice_nodes: int
):
    grown = Grown()
    for name, resident in documents:
        grown.add(name, *resident)
    watch = grown.watch(slice_nodes=slice_nodes)
    watch.look(100)
    shown = add_up([watch.unnamed_blocks, watch.other_blocks, *(d.blocks for d in watch.documents)])
    assert sum(shown.values()) == sum(max(resident) for _, resident in documents)
    sizes = [document.total_blocks for document in watch.documents]
    assert sizes == sorted(sizes, reverse=True)


def test_only_the_largest_documents_are_listed_and_the_rest_is_added_up():
    grown = Grown()
    for number in range(MOST_DOCUMENTS + 7):
        grown.add(f"d{number:04}", device=1 if number < 7 else 2)
    watch = grown.watch()
    watch.look(10)
    assert len(watch.documents) == MOST_DOCUMENTS
    assert {document.total_blocks for document in watch.documents} == {2}
    assert (watch.others, watch.other_blocks) == (7, BlocksByTier(device=7))


def test_a_snapshot_survives_the_way_to_another_process():
    documents = (
        TracedDocument("a", 100, {"device": 96}, why="why"),
        TracedDocument("b", 100, borrowed={"host": 74}, recomputed=26),
    )
    served = ServedRequest("r1", 1.5, 0.1, 0.3, 0.9, 500, {"device": 96}, documents)
    snapshot = TreeSnapshot(
        (DocumentBlocks(("a", "b"), 2, 5, BlocksByTier(1, 2, 3)),),
        other_documents=4,
        other_blocks=BlocksByTier(5, 6, 7),
        unnamed_blocks=BlocksByTier(host=1),
        nodes=9,
        disk=DiskState.STALLED,
        held=BlocksByTier(1, 1, 1),
        capacity=BlocksByTier(2, 2, 2),
        requests=(served,),
        age_s=0.5,
    )
    assert TreeSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict()))) == snapshot
    assert TreeSnapshot.from_dict(TreeSnapshot().to_dict()) == TreeSnapshot()
    assert DocumentBlocks(("a",), 1, 1, BlocksByTier(1, 2, 3)).total_blocks == pytest.approx(6)


def test_documents_are_as_old_as_the_pass_that_saw_them():
    grown, clock = Grown(), [10.0]
    for number in range(4):
        grown.add(f"d{number}", device=1)
    watch = TreeWatch(lambda: list(grown.nodes), slice_nodes=2, clock=lambda: clock[0])
    assert watch.age_s is None
    watch.look()
    clock[0] += 3
    assert watch.age_s is None  # the pass is not complete
    watch.look(10)
    assert (watch.age_s, len(watch.documents)) == (3.0, 4)
    clock[0] += 1
    assert watch.age_s == 4.0


def test_a_tree_of_more_documents_than_a_list_may_have_is_told_as_a_bloom_filter():
    grown = Grown()
    for number in range(MOST_DOCUMENTS):
        grown.add(f"d{number}", device=9)
    watch = grown.watch()
    watch.look(10)
    assert watch.bloom_filter is None  # the list is complete
    grown.add("small", host=1)
    for number in range(100):
        grown.add(f"on disk {number}", disk=1)
    watch.look(10)
    assert watch.bloom_filter is not None
    listed = {name for each in watch.documents for name in each.documents}
    assert "small" not in listed
    assert "small" in watch.bloom_filter
    assert sum(f"on disk {number}" in watch.bloom_filter for number in range(100)) < 10
    snapshot = TreeSnapshot(bloom_filter=watch.bloom_filter)
    assert TreeSnapshot.from_dict(json.loads(json.dumps(snapshot.to_dict()))) == snapshot
