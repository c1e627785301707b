"""What a replica says it no longer holds, and on which cores it computes."""

from __future__ import annotations

import pytest

pytest.importorskip("ray.serve")

from ragcache_engine.fleet_serving.engine_replica import _own_cores, find_gone
from ragcache_engine.tiers.counters import BlocksByTier
from ragcache_engine.tiers.tree_snapshot import DocumentBlocks, TreeSnapshot

ASKED = {b"1": "held", b"2": "below", b"3": "on disk", b"4": "gone"}
TREE = TreeSnapshot(
    (
        DocumentBlocks(("held",), 1, 1, BlocksByTier(2, 0, 0)),
        DocumentBlocks(("below",), 1, 1, BlocksByTier(0, 2, 0)),
        DocumentBlocks(("on disk",), 1, 1, BlocksByTier(0, 0, 2)),
    )
)


def test_documents_are_gone_once_they_are_in_no_fast_tier():
    assert find_gone(ASKED, TREE) == [b"3", b"4"]


def test_a_tree_that_tells_of_some_documents_only_says_nothing():
    assert find_gone(ASKED, TreeSnapshot(TREE.documents, other_documents=1)) == []


def test_replicas_on_one_machine_share_no_core():
    parts = [_own_cores(range(8), rank, 3) for rank in range(3)]
    assert sorted(core for part in parts for core in part) == list(range(8))
    assert _own_cores([5], 1, 2) == []
