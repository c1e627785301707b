"""Searches an index whose vectors do not all have a document.

A store adds a vector before its document, so for a moment the vector has none. Some stores never remove
the vectors of documents that they delete. Such a vector is an orphan, and a search passes over it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from ragcache_engine import IndexOutOfStep, UnknownDocument
from ragcache_integrations.staging import IndexProxy

Result = TypeVar("Result")

WAITS_S = (0.0, 0.01, 0.05)
"""How long to wait before each further search, while a document is being stored or deleted."""


class WithoutOrphans(IndexProxy):
    """Searches an index, and leaves out the vectors that have no document.

    index: a Faiss index, or a proxy for one. has_document: whether a vector's id has a document.
    complete_index: where to look for more if orphans were left out; None accepts fewer results.
    """

    def __init__(
        self, index: Any, has_document: Callable[[int], bool], complete_index: Any = None
    ) -> None:
        super().__init__(index)
        self._has_document = has_document
        self._complete_index = complete_index
        self._passed_over = 0

    def search(self, query: Any, k: int, **options: Any) -> Any:
        """Search as Faiss does. Places for which too few vectors are left have the id -1."""
        distances, ids = self._index.search(query, k, **options)
        width = k
        while self._complete_index is not None and self._lacks_results(ids, k):
            if width >= self._complete_index.ntotal:
                break
            width = min(2 * width, self._complete_index.ntotal)
            distances, ids = self._complete_index.search(query, width, **options)
        return self._without_orphans(distances, ids, k)

    def check_any_found(self) -> None:
        """Raise IndexOutOfStep if the last search found vectors, and none that has a document."""
        if self._passed_over:
            raise IndexOutOfStep(
                f"none of the {self._passed_over} vectors found has a document: load the index and the "
                f"documents from one save, or build them again together; if the first documents are "
                f"being added right now, ask again when they are"
            )

    def _lacks_results(self, ids: Any, k: int) -> bool:
        """Return whether a query has fewer than k documents and its search found vectors throughout."""
        return any(
            row[-1] >= 0 and sum(self._is_document(id_) for id_ in row) < k for row in ids.tolist()
        )

    def _without_orphans(self, distances: Any, ids: Any, k: int) -> Any:
        """Return both arrays with shape (n, k), without the orphans; short rows end with the id -1."""
        self._passed_over = sum(
            id_ >= 0 and not self._has_document(id_) for id_ in ids.ravel().tolist()
        )
        if ids.shape[1] == k and not self._passed_over:
            return distances, ids
        kept_distances, kept_ids = distances[:, :k].copy(), ids[:, :k].copy()
        for place, row in enumerate(ids.tolist()):
            kept = [at for at, id_ in enumerate(row) if self._is_document(id_)][:k]
            kept_distances[place, : len(kept)] = distances[place, kept]
            kept_ids[place, : len(kept)] = ids[place, kept]
            kept_ids[place, len(kept) :] = -1
        return kept_distances, kept_ids

    def _is_document(self, id_: int) -> bool:
        return id_ >= 0 and self._has_document(id_)


def search_until_settled(search: Callable[[], Result], *also: type[Exception]) -> Result:
    """Return what the search returns, and search again if a document was just being stored or deleted.

    also: what the search may raise because of that, beside IndexOutOfStep and UnknownDocument.
    Raises what the last search raises.
    """
    passing: tuple[type[Exception], ...] = (IndexOutOfStep, UnknownDocument, *also)
    for wait_s in WAITS_S:
        try:
            return search()
        except passing:
            time.sleep(wait_s)
    return search()
