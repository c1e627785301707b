"""Which requests pin which nodes, however the nodes are cut meanwhile."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.knowledge import POLICIES
from ragcache_engine.tiers.block_index import BlockIndex, Cut
from ragcache_engine.tiers.prompts import Prompt
from ragcache_engine.tiers.requests import RequestTable, TrackedRequest

BLOCKS = 12
KEYS = [bytes([at]) for at in range(BLOCKS)]


def cuts_at(ends: set[int]) -> list[Cut]:
    return [Cut(end) for end in sorted({*ends, BLOCKS})]


@given(st.lists(st.sets(st.integers(1, BLOCKS)), min_size=1, max_size=6))
def test_a_request_keeps_every_part_of_what_it_has_pinned(cut_by: list[set[int]]):
    index: BlockIndex[Any] = BlockIndex(POLICIES["lru"], 16)
    table = RequestTable(index)
    requests = [
        TrackedRequest(str(number), Prompt(KEYS, cuts_at(ends), BLOCKS * 16))
        for number, ends in enumerate(cut_by)
    ]
    for request in requests:
        assert table.pin(request)
    everything = set().union(*cut_by, {BLOCKS})
    for request in requests:
        ends, at = [], 0
        for node in request.nodes:
            at += node.blocks
            ends.append(at)
        assert ends == sorted(everything)
    assert {node.pins for node in index.nodes()} == {len(requests)}
    for request in requests:
        table.unpin(request)
    assert all(node.pins == 0 for node in index.nodes())
