"""Forgets documents: drops them from every tier, with all blocks that were computed after them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.node_record import B
from ragcache_engine.tiers.requests import RequestTable


class Forgetting(Generic[B]):
    """The documents to forget. One that running requests need goes when the last of these ends."""

    def __init__(self, index: BlockIndex[B], requests: RequestTable[B]) -> None:
        self._index = index
        self._requests = requests
        # Each document, with the earlier requests that may still compute it again.
        self._doomed: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """Return how many documents still wait to be forgotten."""
        return len(self._doomed)

    def add(self, documents: Iterable[str]) -> None:
        """Forget these documents, now or as soon as no running request needs them."""
        for name in documents:
            self._doomed.setdefault(name, set()).update(
                request.name
                for request in self._requests
                if any(name in cut.documents for cut in request.prompt.cuts)
            )
        self.retry()

    def retry(self) -> None:
        """Forget the documents that no running request needs any more."""
        index, requests = self._index, self._requests
        requests.unpin_waiting()
        for name, needing in list(self._doomed.items()):
            nodes = index.nodes_of(name)
            if any(below.pins for node in nodes for below in node.downwards()):
                continue
            index.release(index.tree.remove(nodes), are_evictions=False)
            needing &= requests.names()
            if not needing:
                del self._doomed[name]
                index.counters.forgotten += 1
        # A block that no node owns may come from these documents, and is worth little anyway.
        index.device.sweep()
