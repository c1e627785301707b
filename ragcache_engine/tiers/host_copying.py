"""Chooses the host slots from and to which vLLM's worker copies blocks.

What lies in the host is known to the BlockIndex; this module knows the copies under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.disk_copying import DiskCopying
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.requests import TrackedRequest

STEPS_TO_FLUSH = 8
"""After the host was cleared, copies under way end within this many steps, without a report."""

HOST, DISK = RANK[Tier.HOST], RANK[Tier.DISK]


class HostCopying(Generic[B]):
    """Tells which slot to copy a block from or to, and holds the slot during the copy.

    A block is copied to the host only once. Blocks for the disk travel through the host.
    block_bytes: bytes of one block.
    """

    def __init__(self, index: BlockIndex[B], disk: DiskCopying[B], block_bytes: int) -> None:
        self._index = index
        self._tree = index.tree
        self._host = index.host
        self._counters = index.counters
        self._disk = disk
        self._block_bytes = block_bytes
        self._loading: dict[Key, list[int]] = {}  # slots being copied from
        # Steps to wait, and the slots of copies that vLLM will not report.
        self._unreported: list[tuple[int, int]] = []

    # -- to the device -----------------------------------------------------------------------------

    def begin_load(self, keys: Iterable[Key]) -> list[int]:
        """Return the slots to copy blocks from; the slots keep their content until `finish_load`."""
        slots = []
        for key in keys:
            found = self._index.owner(key)
            assert found is not None, "a block that was found has an owner"
            node, at = found
            slot = self._index.record(node).slots[at]
            assert slot is not None, "a block in the host has a slot"
            self._host.hold(slot)
            self._loading.setdefault(key, []).append(slot)
            slots.append(slot)
        self._counters.loaded_bytes += len(slots) * self._block_bytes
        return slots

    def finish_load(self, keys: Iterable[Key]) -> None:
        """Release the slots that these blocks were copied from."""
        for key in keys:
            slots = self._loading.get(key)
            if slots:
                self._host.release(slots.pop())
                if not slots:
                    del self._loading[key]

    # -- to the host -------------------------------------------------------------------------------

    def begin_store(
        self, request: TrackedRequest | None, keys: Sequence[Key]
    ) -> list[tuple[Key, int]]:
        """Choose which of these blocks, just computed, to copy into which slots.

        request: the one that computed them, None if it has ended. keys: in prompt order.
        """
        offered = set(keys)
        blocks_of: dict[Node, int] = {}
        rest: Iterable[Key] = keys
        if request is not None and request.nodes:
            blocks_of, rest = self._offered_blocks(request.nodes, keys, offered)
        for key in rest:
            if found := self._index.owner(key):
                blocks_of[found[0]] = found[1] + 1
        if request is not None:
            for node, blocks in blocks_of.items():
                self._tree.hold(node, Tier.DEVICE, blocks)
        stored: list[tuple[Key, int]] = []
        for node, blocks in blocks_of.items():
            stored += self._store(node, blocks, offered)
        self._counters.stored_bytes += len(stored) * self._block_bytes
        return stored

    def finish_store(self, keys: Iterable[Key]) -> None:
        """Note that blocks have reached their slots, and offer them to the disk."""
        filled = [key for key in keys if self._host.end_fill(key)]
        if self._disk.is_attached:
            found = map(self._index.owner, filled)
            self._disk.offer(dict.fromkeys(owned[0] for owned in found if owned))

    def _offered_blocks(
        self, nodes: Iterable[Node], keys: Sequence[Key], offered: set[Key]
    ) -> tuple[dict[Node, int], Sequence[Key]]:
        """Find how many of each node's blocks are among the keys; return also the keys after the path.

        Looks once at each node rather than at each block, for speed.
        """
        blocks_of: dict[Node, int] = {}
        last: Key | None = None
        for node in nodes:
            own, upto = self._index.record(node).keys, node.blocks
            if own[-1] not in offered:
                if own[0] not in offered:
                    continue  # or all of the keys lie within it: then they are all left over
                while own[upto - 1] not in offered:
                    upto -= 1
            blocks_of[node], last = upto, own[upto - 1]
        behind = 0 if last is None else len(keys)
        while behind and keys[behind - 1] != last:
            behind -= 1
        return blocks_of, keys[behind:]

    def _store(self, node: Node, blocks: int, offered: set[Key]) -> list[tuple[Key, int]]:
        host, start = self._host, node.resident[HOST]
        if start >= blocks or not host.count:
            return []
        record = self._index.record(node)
        keys = record.keys
        if keys[start] not in offered:
            return []  # the host has lost earlier blocks of the node
        # Blocks for the disk travel through the host, even if they evict better blocks there: those are
        # on the disk already, or come back from it sooner than this one could be computed again.
        through = self._disk.wants(node, blocks - node.resident[DISK], uses=node.uses + 1)
        force = through or node.kept[HOST] > 0
        freed = self._tree.grow(node, Tier.HOST, blocks, force=force, in_use=True)
        self._index.release(freed)
        self._counters.refused += blocks - node.resident[HOST]
        end = start
        while end < node.resident[HOST] and not host.is_filling(keys[end]):
            end += 1
        slots = host.take(end - start)
        if slots:
            record.writable_slots()[start : start + len(slots)] = slots
        stored = list(zip(keys[start:end], slots, strict=False))  # as far as there are slots
        for key, slot in stored:
            host.begin_fill(key, slot)
        if start + len(stored) < node.resident[HOST]:
            freed = self._tree.drop(node, Tier.HOST, start + len(stored))
            self._index.release(freed, are_evictions=False)
        return stored

    # -- clearing ----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Empty the host tier. Copies to and from the device that still run will not be reported."""
        slots = self._host.abandon_fills(self._disk.keys_being_read)
        slots += [slot for loading in self._loading.values() for slot in loading]
        self._loading.clear()
        self._unreported += [(STEPS_TO_FLUSH, slot) for slot in slots]
        self._index.drop_all(Tier.HOST)

    def step(self) -> None:
        """Release the slots of unreported copies that have ended by now. Call this once a step."""
        if self._unreported:
            waiting, self._unreported = self._unreported, []
            for steps, slot in waiting:
                if steps > 1:
                    self._unreported.append((steps - 1, slot))
                else:
                    self._host.release(slot)

    # -- checking ----------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Raise AssertionError if a block is being copied to the device. For tests."""
        assert not self._loading
        assert not self._unreported
