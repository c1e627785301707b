"""Decides which blocks to copy between host and disk, and takes in the results of the copies.

The threads that read and write are those of `disk/transfers.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.counters import DiskState
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk.naming import Naming
from ragcache_engine.tiers.disk.transfers import BlockCopy, DiskTransfers, FinishedCopy
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.requests import TrackedRequest
from ragcache_engine.tiers.shared_copying import SharedCopying
from ragcache_engine.tiers.speed import Speeds

MOST_WRITES = 256
"""How many blocks may wait to be written. A disk that is too slow gets only as many as it can take."""

HOST, DISK = RANK[Tier.HOST], RANK[Tier.DISK]


class DiskCopying(Generic[B]):
    """Reads blocks into host slots and writes them from there. Without a disk, no method does anything.

    speeds: this class records the speed of reading in them. shared: what hosts share, below the disk.
    naming: marks documents on the disk; None without one.
    """

    def __init__(self, index: BlockIndex[B], speeds: Speeds) -> None:
        self._index = index
        self.shared = SharedCopying(index)
        self._tree = index.tree
        self._host = index.host
        self._counters = index.counters
        self._speeds = speeds
        self.naming: Naming | None = None
        self._reading: dict[str, Key] = {}  # file name -> block, from file to slot
        self._writing: dict[str, Key] = {}  # file name -> block, from slot to file

    @property
    def _transfers(self) -> DiskTransfers | None:
        return self._index.files.transfers

    @property
    def is_attached(self) -> bool:
        """Whether there is a disk tier."""
        return self._transfers is not None

    @property
    def state(self) -> DiskState:
        """What the disk tier can do now."""
        transfers = self._transfers
        if transfers is None:
            return DiskState.OFF if self._tree.capacity(Tier.DISK) else DiskState.NONE
        if transfers.is_stalled:
            return DiskState.STALLED
        return DiskState.ON if transfers.is_writable else DiskState.READ_ONLY

    @property
    def is_reading(self) -> bool:
        """Whether blocks that requests may wait for are on their way from the disk or the store."""
        if self.shared.is_asking:
            return True
        return bool(self._reading) and not (self._transfers and self._transfers.is_stalled)

    @property
    def queued_reads(self) -> int | None:
        """How many reads wait for others to end; None if nothing can be read now."""
        if self._transfers is None or self._transfers.is_stalled:
            return None
        return self._transfers.queued_reads

    @property
    def pending_reads(self) -> int:
        """How many blocks are on their way from the disk or the store."""
        return len(self._reading)

    @property
    def pending_writes(self) -> int:
        """How many blocks are on their way to the disk."""
        return len(self._writing)

    @property
    def is_writing(self) -> bool:
        """Whether blocks are on their way to the disk."""
        return bool(self._writing)

    @property
    def keys_being_read(self) -> set[Key]:
        """The blocks on their way from the disk."""
        return set(self._reading.values())

    # -- naming files ------------------------------------------------------------------------------

    def name_files(self, request: TrackedRequest) -> None:
        """Name the files of the request's blocks, and count those that are on disk already.

        A file carries the marks that were known when it was written, here or elsewhere. It is given those
        that came since: otherwise a later process would not find it when the document is forgotten.
        """
        prompt, at, cut = request.prompt, 0, 0
        if self._transfers is None or not prompt.file_names:
            return
        for node in request.nodes:
            while prompt.cuts[cut].end < at + node.blocks:
                cut += 1
            record = self._index.record(node)
            marks = tuple(dict.fromkeys((*record.marks, *prompt.marks[cut])))
            are_more = len(marks) > len(record.marks)
            record.marks = marks
            record.writable_files()[:] = prompt.file_names[at : at + node.blocks]
            known = upto = node.resident[DISK]
            while upto < node.blocks and self._transfers.holds(prompt.file_names[at + upto]):
                upto += 1
            if upto > known:
                self._keep_files(node, known, upto, force=True)
            first = 0 if are_more else known
            if marks and first < node.resident[DISK]:
                written = prompt.file_names[at + first : at + node.resident[DISK]]
                self._transfers.add_marks(written, marks)
            if are_more and self.shared.transfers is not None:
                self.shared.transfers.note_marks(prompt.file_names[at : at + node.blocks])
            at += node.blocks

    def count_written(self, names: Sequence[str | None]) -> int:
        """Return how many of these files are not on their way to the disk."""
        if not self._writing:
            return len(names)
        return sum(name not in self._writing for name in names)

    @property
    def has_room_to_write(self) -> bool:
        """Whether more blocks may wait to be written."""
        transfers = self._transfers
        return transfers is not None and transfers.pending_writes < MOST_WRITES

    def _keep_files(self, node: Node, start: int, upto: int, *, force: bool = False) -> bool:
        """Count the node's first `upto` blocks as on disk; return False if there is no room for all."""
        self._index.release(self._tree.grow(node, Tier.DISK, upto, force=force))
        files = self._index.record(node).files
        self._index.files.add(files[start : node.resident[DISK]])
        return node.resident[DISK] >= upto

    # -- reading -----------------------------------------------------------------------------------

    def fetch(self, request: TrackedRequest, *, is_urgent: bool) -> None:
        """Read the blocks that the request is to load into host slots, where only the disk has them.

        is_urgent: whether the request waits for nothing else.
        """
        if self._transfers is None or not request.load_blocks:
            return
        if is_urgent and self._reading:
            self._hasten(request, self._transfers)
        at, upto = 0, request.device_blocks + request.load_blocks
        for node in list(request.nodes):
            there = max(node.resident[DISK], min(node.blocks, request.shared_blocks - at))
            wanted = min(there, upto - at)
            at += node.blocks
            if at <= request.device_blocks:
                continue  # the device has the whole node
            if node.resident[HOST] < wanted and not self._read(
                node, wanted, request, self._transfers, is_urgent=is_urgent
            ):
                return
            if at >= upto:
                return

    def cancel_reads(self, request: TrackedRequest) -> None:
        """Take back the reads for a request that has ended, if nobody else wants them."""
        transfers = self._transfers
        if transfers is None or not self._reading:
            return
        for name in request.prompt.file_names:
            key = self._reading.get(name)
            found = self._index.owner(key) if key else None
            if key is None or (found and found[0].pins) or not self._host.is_filling(key):
                continue
            shared = self.shared.transfers
            if transfers.cancel_read(name) or (shared and shared.cancel_read(name)):
                del self._reading[name]
                self._host.end_fill(key)
                self._drop(key, (Tier.HOST,))

    def _hasten(self, request: TrackedRequest, transfers: DiskTransfers) -> None:
        """Let the reads that the request waits for go before those that others will need later."""
        names, first = request.prompt.file_names, request.device_blocks
        for name in names[first : first + request.load_blocks]:
            if name in self._reading:
                transfers.hasten(name)
                if self.shared.transfers:
                    self.shared.transfers.hasten(name)

    def _read(
        self,
        node: Node,
        upto: int,
        request: TrackedRequest,
        transfers: DiskTransfers,
        *,
        is_urgent: bool,
    ) -> bool:
        """Read the node's next blocks, up to `upto`. Return False if the host lacks room for all."""
        start = node.resident[HOST]
        self._index.release(self._tree.grow(node, Tier.HOST, upto, force=True))
        record = self._index.record(node)
        for at in range(start, node.resident[HOST]):
            key, name = record.keys[at], record.files[at] if record.files else None
            slots = [] if name is None or self._host.is_filling(key) else self._host.take(1)
            if not slots or name is None:
                freed = self._tree.drop(node, Tier.HOST, at)
                self._index.release(freed, are_evictions=False)
                return False
            slot = record.writable_slots()[at] = slots[0]
            self._host.begin_fill(key, slot)
            self._reading[name] = key
            request.from_disk.add(key)
            is_on_disk = at < node.resident[DISK]
            if is_on_disk and not (transfers.is_stalled and self.shared.transfers):
                transfers.read(BlockCopy(name, slot), is_urgent=is_urgent)
            else:
                assert self.shared.transfers is not None, "only a store has blocks beyond the disk"
                request.from_shared.add(key)
                self.shared.transfers.read(BlockCopy(name, slot), is_urgent=is_urgent)
        return node.resident[HOST] >= upto

    # -- writing -----------------------------------------------------------------------------------

    def wants(self, node: Node, blocks: int, *, uses: int) -> bool:
        """Return whether to write the node's blocks: the disk has room, and its owner's quota, or they
        were used more than once.

        A disk wears out, and most documents are never asked for twice. Those that are to be kept there
        are written all the same.
        """
        if self._transfers is None or not self._transfers.is_writable:
            return False
        if node.kept[DISK]:
            return True
        free = self._tree.capacity(Tier.DISK) - self._tree.used(Tier.DISK)
        quota = self._tree.quota(Tier.DISK)
        if node.owner is not None and quota is not None:
            free = min(free, quota - self._tree.used_by(Tier.DISK)[node.owner])
        return free >= blocks or uses > 1

    def offer(self, nodes: Iterable[Node]) -> None:
        """Write the blocks that the host has and the disk lacks, if they deserve a place there.

        nodes: of one path, in order. What hosts share is offered to them as well.
        """
        nodes = list(nodes)
        self.shared.offer(nodes)
        self._offer_disk(nodes)

    def _offer_disk(self, nodes: Iterable[Node]) -> None:
        transfers = self._transfers
        if transfers is None or not transfers.is_writable:
            return
        for node in nodes:
            record = self._index.record(node)
            names, keys = record.files, record.keys
            at = node.resident[DISK]
            while at < node.resident[HOST] and not self._host.is_filling(keys[at]):
                name, slot = names[at] if names else None, record.slots[at]
                if name is None or slot is None or name in self._writing:
                    break
                is_kept = node.kept[DISK] > 0
                if (
                    transfers.pending_writes >= MOST_WRITES
                    or not self.wants(node, 1, uses=node.uses)
                    or not self._keep_files(node, at, at + 1, force=is_kept)
                ):
                    self._counters.unwritten += 1
                    break
                self._host.hold(slot)
                self._writing[name] = keys[at]
                transfers.write(BlockCopy(name, slot, record.marks))
                at += 1

    def offer_all(self) -> None:
        """Offer the disk the blocks that only the host has, the most used first."""
        nodes = [node for node in self._index.nodes() if node.resident[HOST]]
        self._offer_disk(sorted(nodes, key=lambda node: (-node.uses, node.end)))

    # -- what other engines do ---------------------------------------------------------------------

    def name_kept(self, documents: Sequence[str], tenant: str | None) -> str | None:
        """Return the name under which kept documents are known there; None without a disk."""
        return None if self.naming is None else self.naming.kept(documents, tenant)

    def keep_files(self, kept: KeptFile) -> None:
        """Let no engine on the folder remove these files to make room; see KeptFiles."""
        if self._transfers is not None:
            self._transfers.keep_files(kept)

    def release_files(self, name: str) -> None:
        """Undo `keep_files` for the documents of this name."""
        if self._transfers is not None:
            self._transfers.release_files(name)

    def count_kept_elsewhere(self, but: Iterable[str]) -> int:
        """Return how many blocks others keep in the folder, or processes before this one kept.

        but: names of sets that are about to be kept.
        """
        return 0 if self._transfers is None else self._transfers.count_kept_elsewhere(but)

    def take_forgotten(self) -> dict[str, int]:
        """Return what other engines on the disk have forgotten; see DiskTransfers.take_forgotten."""
        return {} if self._transfers is None else self._transfers.take_forgotten()

    def forget_files(self, documents: Sequence[str]) -> None:
        """Remove all files of these documents, of earlier lives and other engines too."""
        if self._transfers is not None:
            if self.naming is not None:
                self._withdraw(map(self.naming.mark, documents))
            self._transfers.forget_files(documents)

    def note_forgotten(self, times: Mapping[str, int]) -> None:
        """Tell the disk that these documents are forgotten here too."""
        if self._transfers is not None:
            self._withdraw(times)
            self._transfers.note_forgotten(times)

    def _withdraw(self, marks: Iterable[str]) -> None:
        """Store nothing that waits for the shared store and was computed from these documents."""
        if self.shared.transfers is not None:
            self.shared.transfers.withdraw(marks)

    # -- results -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take in the reads and writes that have ended since the last call."""
        if self.shared.transfers is not None:
            self.shared.transfers.take_answers()
            for done in self.shared.transfers.take_finished():
                if done.is_read:
                    self._finish_read(done, is_shared=True)
                else:
                    self.shared.finish_write(done)
        if self._transfers is not None:
            for done in self._transfers.take_finished():
                if done.is_read:
                    self._finish_read(done)
                else:
                    self._finish_write(done)

    def _finish_read(self, done: FinishedCopy, *, is_shared: bool = False) -> None:
        key = self._reading.pop(done.copy.name, None)
        if done.failure is None and is_shared:
            self._counters.shared_read_bytes += done.size_bytes
            self._speeds.from_shared.record_copy(done.size_bytes, done.seconds)
        elif done.failure is None:
            self._counters.read_bytes += done.size_bytes
            self._speeds.from_disk.record_copy(done.size_bytes, done.seconds)
        elif done.failure == "missing":
            self._counters.missing += 1
        else:
            self._counters.damaged += 1
        if key is None or not self._host.is_filling_slot(key, done.copy.slot):
            self._host.release(done.copy.slot)
            return
        self._host.end_fill(key)
        if done.failure is not None:
            # The blocks after this one may be sound, but cannot be reached without it.
            self._drop(key, (Tier.HOST,) if is_shared else (Tier.DISK, Tier.HOST))

    def _finish_write(self, done: FinishedCopy) -> None:
        key = self._writing.pop(done.copy.name, None)
        self._host.release(done.copy.slot)
        if done.failure is None:
            self._counters.written_bytes += done.size_bytes
            return
        self._counters.unwritten += 1
        if key is not None:
            self._drop(key, (Tier.DISK,))
        if done.failure == "full":
            # Others take part of the quota, or keep it. What the policy likes least makes room.
            self._index.release(self._tree.evict(Tier.DISK, 1))

    def _drop(self, key: Key, tiers: Sequence[Tier]) -> None:
        """Drop a block, and the blocks after it in its node, from these tiers."""
        if found := self._index.owner(key):
            node, at = found
            for tier in tiers:
                freed = self._tree.drop(node, tier, at)
                self._index.release(freed, are_evictions=False)

    # -- checking ----------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Raise AssertionError if a block is being read or written. For tests."""
        assert not self._reading
        assert not self._writing
        assert not self.shared.pending_writes
