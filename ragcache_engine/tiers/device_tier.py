"""Decides which free block of device memory vLLM overwrites next, by the knowledge tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.node_record import B, clear_places
from ragcache_engine.tiers.requests import RequestTable

DEVICE = RANK[Tier.DEVICE]


class DeviceTier(Generic[B]):
    """Takes free blocks back from vLLM and gives them out again, in the order of the tree.

    vLLM's block pool owns the blocks and knows who computes with them. The tree decides which cached
    block is worth least.
    """

    def __init__(self, index: BlockIndex[B], requests: RequestTable[B]) -> None:
        self._index = index
        self._tree = index.tree
        self._pool = index.device
        self._requests = requests

    def __len__(self) -> int:
        """Return how many blocks are free."""
        return len(self._pool)

    def free_blocks(self) -> list[B]:
        """Return all free blocks: empty ones, those that no node owns, and those of nodes."""
        return self._pool.all()

    def claim(self, block: B) -> None:
        """Note that a request computes with a free block now. Raises KeyError if it is not free."""
        self._pool.claim(block)

    def return_blocks(self, blocks: Iterable[B]) -> None:
        """Take back blocks that no request computes with any more."""
        pool, owner, key_of = self._pool, self._index.owner, self._pool.key_of
        returned: dict[Node, list[int]] = {}
        latest: Node | None = None  # a node's blocks come in a row
        line: list[B | None] = []
        places: list[int] = []
        for block in blocks:
            key = key_of(block)
            if key is None:
                pool.add_empty(block)
                continue
            found = owner(key)
            if pool.suspects and pool.refuse_suspect(block, has_owner=found is not None):
                pool.add_empty(block)
                continue
            if found is None:
                pool.add_unowned(block)
                continue
            node, at = found
            if node is not latest:
                latest, line = node, self._index.record(node).writable_device()
                places = returned.setdefault(node, [])
            other = line[at]
            if other is not None and other is not block and pool.is_owned(other):
                pool.add_unowned(block)  # a second copy
                continue
            line[at] = block
            pool.add_owned(block)
            places.append(at)
        for node in sorted(returned, key=lambda node: node.end):
            self._tell_tree(node, returned[node])

    def take(self, count: int) -> list[B]:
        """Give out `count` blocks to be overwritten. The caller has made sure that there are as many."""
        taken = self._pool.pop_spares(count)
        while missing := count - len(taken):
            self._make_room(missing)
            taken += self._pool.pop_spares(missing)
        return taken

    def clear(self) -> None:
        """Empty all blocks of device memory in the books; vLLM has dropped what they held."""
        self._index.drop_all(Tier.DEVICE)
        self._index.forget_device_blocks()
        self._pool.clear()

    def _tell_tree(self, node: Node, places: Sequence[int]) -> None:
        """Tell the tree of a node's returned blocks; blocks that it cannot count become unowned."""
        record = self._index.record(node)
        upto = node.resident[DEVICE]
        while upto < node.blocks and record.device[upto] is not None:
            upto += 1
        self._tree.hold(node, Tier.DEVICE, upto)
        for at in places:
            if at >= node.resident[DEVICE]:
                for block in clear_places(record.device, at, at + 1):
                    self._pool.disown(block)

    def _make_room(self, count: int) -> None:
        """Let the tree give up blocks until at least one is empty."""
        while not self._pool.has_empty():
            freed = self._tree.evict(Tier.DEVICE, count)
            if freed:
                self._index.release(freed)
            elif not self._requests.unpin_waiting():
                self._empty_any()

    def _empty_any(self) -> None:
        """Free a block of a preempted request: its nodes are pinned, so the tree evicts none of them."""
        block = self._pool.empty_any_owned()
        key = self._pool.key_of(block)
        found = self._index.owner(key) if key else None
        if found:
            node, at = found
            self._index.release(self._tree.drop(node, Tier.DEVICE, at))
