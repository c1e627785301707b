"""Remembers documents that searches found, or that are near those, and that no prompt has had yet.

A reranker leaves documents out, and a neighbour of a document is found sooner than any other. So both are
likely to come in later prompts. They are prepared when nothing else is to be done.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from sys import getsizeof
from threading import Lock
from typing import NamedTuple

from ragcache_engine.anywhere.corpus import Corpus
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import Document

MOST_WAITING, MOST_WAITING_BYTES = 256, 8 << 20
"""How many documents wait, and how much memory their texts take; those that were found last."""

MOST_KNOWN_BYTES, NAME_BYTES = 8 << 20, 300
"""How much memory the names of documents take that do not wait any more, and what each takes."""

Key = tuple[str | None, str]  # tenant, document


class Found(NamedTuple):
    """A document that waits.

    corpus: where its neighbour is looked up, if anywhere. planned: as in BackendRequest. times: how often
    it was found. tenant: for whom; None: everybody.
    """

    document: Document
    corpus: Corpus | None
    planned: int | None
    times: int = 0
    tenant: str | None = None


class FoundDocuments:
    """Documents that wait to be prepared, once each. Any thread may call the methods."""

    def __init__(self) -> None:
        self._waiting: LatestItems[Key, Found] = LatestItems(
            MOST_WAITING_BYTES, lambda _, one: getsizeof(one.document.text), most=MOST_WAITING
        )
        self._known: LatestItems[Key, Hashable] = LatestItems(
            MOST_KNOWN_BYTES, lambda key, _: NAME_BYTES + getsizeof(key[1])
        )
        self._lock = Lock()

    def __len__(self) -> int:
        """Return how many documents wait."""
        return len(self._waiting)

    def note(
        self,
        documents: Sequence[Document],
        corpus: Corpus | None,
        tenant: str | None,
        planned: int | None,
    ) -> None:
        """Let documents wait that are new; those that wait already were found once more."""
        with self._lock:
            for document in documents:
                key = tenant, document.id
                if key not in self._known:
                    before = self._waiting.pop(key, None)
                    times = before.times if before else 0
                    self._waiting[key] = Found(document, corpus, planned, times + 1, tenant)

    def note_prompt(self, document_ids: Iterable[str], tenant: str | None) -> None:
        """Let documents wait no more: they stand in a prompt."""
        with self._lock:
            for name in document_ids:
                for owner in (tenant, None):
                    self._waiting.pop((owner, name), None)
                self._known[tenant, name] = None

    def take(self, tenant: str | None) -> Found | None:
        """Take out the document that was found most often for this tenant; None if none waits.

        What was found without a tenant is everybody's.
        """
        with self._lock:
            mine = [key for key in self._waiting if key[0] in (tenant, None)]
            if not mine:
                return None
            key = max(reversed(mine), key=lambda one: self._waiting[one].times)
            self._known[key] = None
            return self._waiting.pop(key)

    def put_back(self, found: Found) -> None:
        """Let a document wait again that was taken out and not prepared."""
        key = found.tenant, found.document.id
        with self._lock:
            self._known.pop(key, None)
            self._waiting.setdefault(key, found)

    def has_some(self, tenant: str | None) -> bool:
        """Return whether a document waits."""
        with self._lock:
            return any(key[0] in (tenant, None) for key in self._waiting)

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember these documents no longer, nor a tenant's."""
        doomed = set(document_ids)
        with self._lock:
            for items in (self._waiting, self._known):
                gone = [
                    (tenant, document)
                    for tenant, document in items
                    if not doomed.isdisjoint((document, *forget_ids_of(tenant)))
                ]
                for key in gone:
                    del items[key]

    def clear(self) -> None:
        """Remember nothing."""
        with self._lock:
            self._waiting.clear()
            self._known.clear()
