"""Decides what to ask a shared store for, what to fetch from it, and what to store there.

The threads that ask, read and write are those of `shared/transfers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.disk.transfers import BlockCopy, FinishedCopy
from ragcache_engine.tiers.node_record import B
from ragcache_engine.tiers.requests import TrackedRequest
from ragcache_engine.tiers.shared.transfers import SharedTransfers

HOST = RANK[Tier.HOST]

PATIENCE_S = 0.25
"""A request waits so long for the store to say what it has, and then computes it."""


class SharedCopying(Generic[B]):
    """The store's side of the host tier. Without a store, no method does anything.

    Only documents are shared, and what stands before them: questions come once.
    """

    def __init__(self, index: BlockIndex[B]) -> None:
        self._index = index
        self._host = index.host
        self._counters = index.counters
        self.transfers: SharedTransfers | None = None

    @property
    def queued_reads(self) -> int | None:
        """How many reads wait for others to end; None if nothing can be read now."""
        return None if self.transfers is None else self.transfers.queued_reads

    @property
    def is_asking(self) -> bool:
        """Whether answers are on their way that requests may wait for."""
        return self.transfers is not None and self.transfers.is_asking

    @property
    def pending_writes(self) -> int:
        """How many blocks are on their way to the store."""
        return 0 if self.transfers is None else self.transfers.pending_writes

    # -- asking ------------------------------------------------------------------------------------

    def list_ends(self, request: TrackedRequest) -> list[int]:
        """Return where the request's documents end, in blocks, and what stands before the first one."""
        if self.transfers is None or not request.prompt.file_names:
            return []
        cuts = list(request.prompt.cuts)
        while cuts and not cuts[-1].documents:
            cuts.pop()
        return [cut.end for cut in cuts]

    def ask(self, request: TrackedRequest, ends: list[int]) -> None:
        """Ask whether the store has the blocks with which these documents end."""
        transfers = self.transfers
        if transfers is None or not transfers.is_usable:
            return
        request.asked_shared, request.awaits_answers = ends, True
        transfers.ask([request.prompt.file_names[end - 1] for end in ends])

    def look(self, request: TrackedRequest, held: int) -> None:
        """Note what is known of the answers. held: leading blocks that other tiers have."""
        transfers = self.transfers
        request.shared_blocks, request.awaits_answers = 0, False
        if transfers is None or not request.asked_shared:
            return
        names = request.prompt.file_names
        for end in request.asked_shared:
            if end > len(names):
                return  # a document was forgotten meanwhile, and is not kept any more
            has = transfers.has(names[end - 1])
            if has:
                begin, request.shared_blocks = request.shared_blocks, end
                if (lost := transfers.find_lost(names[begin:end])) is not None:
                    request.shared_blocks = begin + lost
                    return
            elif has is None:
                request.awaits_answers = True
                return
            elif end > held:
                return

    # -- storing -----------------------------------------------------------------------------------

    def offer(self, nodes: Sequence[Node]) -> None:
        """Store the blocks of documents that the host has and the store lacks.

        nodes: of one path, in order; those before the last document are stored.
        """
        transfers = self.transfers
        if transfers is None:
            return
        # The host's slots are for requests, and a slow store holds each until it has been read.
        room = min(transfers.room, self._host.count // 4 - transfers.pending_writes)
        count = len(nodes)
        while count and not nodes[count - 1].documents:
            count -= 1
        for node in nodes[:count]:
            if room <= 0:
                return
            room -= self._offer(node, room, transfers)

    def _offer(self, node: Node, room: int, transfers: SharedTransfers) -> int:
        """Store at most so many of a node's blocks; return how many."""
        record = self._index.record(node)
        names, here = record.files, node.resident[HOST] if record.files else 0
        at = here
        while at and not ((name := names[at - 1]) and transfers.is_stored(name)):
            at -= 1  # those before one that is stored are, too
        begun = at
        while at < min(here, begun + room) and not self._host.is_filling(record.keys[at]):
            name, slot = names[at], record.slots[at]
            if name is None or slot is None:
                break
            self._host.hold(slot)
            transfers.write(BlockCopy(name, slot, record.marks))
            at += 1
        return at - begun

    # -- results -----------------------------------------------------------------------------------

    def finish_write(self, done: FinishedCopy) -> None:
        """Note that a block has been stored, or why not."""
        self._host.release(done.copy.slot)
        self._counters.shared_written_bytes += done.size_bytes
        self._counters.unshared += done.failure is not None
