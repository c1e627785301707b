"""Forgets documents and tenants: drops them from every tier, with all blocks computed after them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Generic

from ragcache_engine.knowledge import Node
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.node_record import B
from ragcache_engine.tiers.requests import RequestTable, TrackedRequest
from ragcache_engine.tiers.retention import Retention


class Forgetting(Generic[B]):
    """Forgets at once, whoever computes with the documents.

    From the call on, no request finds a block that was computed from one of them. The requests that came
    before keep the device memory they compute with, and compute to their end; what they add is dropped
    when they end. A request that comes later and brings the same text computes it anew, and that is kept.
    """

    def __init__(
        self, index: BlockIndex[B], requests: RequestTable[B], retention: Retention[B]
    ) -> None:
        self._index = index
        self._retention = retention
        self._requests = requests
        self._withdrawn: set[str] = set()  # requests whose new blocks are dropped when they end
        self._donors: dict[str, str] = {}  # what computes a donor for one of these -> that one

    def __len__(self) -> int:
        """Return how many requests still compute with forgotten documents."""
        return len(self._withdrawn) + len(self._donors)

    def forget(self, documents: Iterable[str]) -> None:
        """Forget these documents, all in one pass. An id of `forget_id` stands for a tenant's all."""
        index, names = self._index, frozenset(documents)
        named = [
            node for name in names for node in (*index.nodes_of(name), *index.nodes_of_tenant(name))
        ]
        doomed = {below for node in named for below in node.downwards()}
        keys = [key for node in doomed for key in index.record(node).keys]
        self._retention.forget(names, doomed)
        for request in self._requests.with_guesses():
            self.withdraw(request, names, doomed)
        index.release(index.tree.remove(named), are_evictions=False)
        index.device.hide(keys)
        # A block that no node owns may come from these documents, and is worth little anyway.
        index.device.sweep()
        index.counters.forgotten += len(names)

    def withdraw(
        self, request: TrackedRequest, names: frozenset[str], doomed: Container[Node] = ()
    ) -> None:
        """Keep nothing that a request computes with these documents, or behind these nodes."""
        block = self._find_first_doomed(request, names, doomed)
        if block is not None:
            self._requests.withdraw(request, block)
            self._note_withdrawn(request)
        if _borrows_any(request, names):
            self._requests.withdraw_donors(request)
            self._note_withdrawn(request)

    def is_withdrawn(self, name: str) -> bool:
        """Return whether the request computes with documents that were forgotten meanwhile."""
        return name in self._withdrawn

    def end_request(self, name: str) -> None:
        """Drop what a request has computed since documents of its prompt were forgotten.

        Call this when the request ends, before its blocks come back.
        """
        borrower = self._donors.pop(name, None)
        # Whoever still borrows needs the donor's blocks, and drops them itself when it ends.
        if name in self._withdrawn or (borrower is not None and borrower not in self._withdrawn):
            self._withdrawn.discard(name)
            self._index.device.sweep()

    def note_donor(self, donor: str, borrower: str) -> None:
        """Note that a request computes what another one borrows, as it may outlive that one."""
        if borrower in self._withdrawn:
            self._donors[donor] = borrower

    def _note_withdrawn(self, request: TrackedRequest) -> None:
        if self._requests.get(request.name) is request:
            self._withdrawn.add(request.name)

    def _find_first_doomed(
        self, request: TrackedRequest, names: frozenset[str], doomed: Container[Node]
    ) -> int | None:
        """Return the first block of the prompt that comes from a forgotten document; None if none does.

        A prompt may hold a document without naming it; then the nodes tell. All blocks come from a
        forgotten tenant.
        """
        at = 0
        is_tenants = not names.isdisjoint(forget_ids_of(request.prompt.tenant))
        for cut in request.prompt.cuts:
            if is_tenants or not names.isdisjoint(cut.documents):
                break
            at = cut.end
        end = at
        for place, key in enumerate(request.prompt.keys[:end]):
            owned = self._index.owner(key)
            if owned and owned[0] in doomed:
                return place
        kept = request.prompt.cuts[-1].end if request.prompt.cuts else 0
        return end if end < kept else None


def _borrows_any(request: TrackedRequest, names: frozenset[str]) -> bool:
    """Return whether a request borrows tensors that were computed from one of these documents.

    Or computes one of them itself, where its tensors are not exact any more.
    """
    borrowed = [cut for donor in request.donors for cut in donor.cuts]
    return (
        not names.isdisjoint(request.in_place)
        or any(not names.isdisjoint(cut.documents) for cut in borrowed)
        or (bool(borrowed) and not names.isdisjoint(forget_ids_of(request.prompt.tenant)))
    )
