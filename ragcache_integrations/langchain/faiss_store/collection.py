"""Documents and their vectors, kept in step, for many threads at once.

Rows and documents change together, in one step, so that no search sees a half-finished change.
Vectors are added to the index before that step, in portions, so that a search waits for one portion
at most. While an index is rebuilt, the old one answers searches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger

import faiss
import numpy as np
from langchain_core.documents import Document

from ragcache_integrations.langchain.faiss_store.errors import VectorShapeError
from ragcache_integrations.langchain.faiss_store.filter_cache import FilterCache
from ragcache_integrations.langchain.faiss_store.filters import Filter
from ragcache_integrations.langchain.faiss_store.indexes import IndexKind, is_rebuild_due
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix, Metric
from ragcache_integrations.langchain.faiss_store.row_search import (
    Effort,
    OnRowStage,
    RowNumbers,
    Scores,
    search_rows,
)
from ragcache_integrations.search_checks import check_vector_size
from ragcache_integrations.shared_lock import SharedLock
from ragcache_integrations.staging import OnStage

_VECTORS_PER_ADD = 1_024  # a search waits while this many vectors are added

_logger = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, nearest first.

    vectors: shape (n, dimensions); None if the caller did not ask for them.
    """

    documents: list[Document]
    scores: Scores
    vectors: FloatMatrix | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a collection.

    index: None if there are no documents. built_from: how many vectors it had when it was built.
    rows: the documents by their rows; a row without a document was deleted.
    """

    index: faiss.Index | None
    built_from: int
    rows: Mapping[int, Document]


class Collection:
    """The contents of a store. Its documents are replaced, never changed; each has an id.

    changes: how often documents came or went.
    """

    def __init__(self, kind: IndexKind, metric: Metric, snapshot: Snapshot | None = None) -> None:
        self.kind = kind
        self.metric = metric
        self.changes = 0
        self._index: faiss.Index | None = None
        self._built_from = 0
        self._documents: dict[int, Document] = {}  # by row, in order; deleted ones are gone
        self._rows: dict[str, int] = {}
        self._filter_cache = FilterCache()
        self._lock = SharedLock()
        self._writer_lock = threading.Lock()
        if snapshot and snapshot.index is not None:
            self._index, self._built_from = snapshot.index, snapshot.built_from
            self._documents = dict(snapshot.rows)
            self._rows = {str(document.id): row for row, document in snapshot.rows.items()}

    @property
    def index(self) -> faiss.Index | None:
        return self._index

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, documents: Sequence[Document], vectors: FloatMatrix) -> None:
        """Add documents, all of them or, on an error, none. A document replaces the one with its id.

        documents: their ids are distinct. vectors: shape (len(documents), dimensions), finite.
        Raises VectorShapeError if the vectors have other dimensions than the index.
        """
        if not documents:
            return
        vectors = self.metric.as_indexed(vectors)
        with self._as_only_writer():
            if self._index is None:
                index, first = self.kind.build(vectors, self.metric), 0
            else:
                index, first = self._index, self._append(vectors)
            with self._lock.writing():
                if self._index is None:
                    self._index, self._built_from = index, len(vectors)
                self._drop(document.id for document in documents)
                for row, document in enumerate(documents, start=first):
                    self._documents[row] = document
                    self._rows[str(document.id)] = row
                self.changes += 1
                self._filter_cache.clear()
            self._rebuild_if_due()

    def remove(self, ids: Iterable[str] | None) -> None:
        """Delete these documents, or all of them for None; ignore unknown ids."""
        with self._as_only_writer():
            with self._lock.writing():
                self._drop(list(self._rows) if ids is None else ids)
                self.changes += 1
                self._filter_cache.clear()
                if not self._rows:
                    # The next documents may come from another embedding model.
                    self._index, self._built_from = None, 0
            self._rebuild_if_due()

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return the documents with these ids, in this order; leave out unknown ids."""
        with self._lock.reading():
            return [self._documents[self._rows[name]] for name in ids if name in self._rows]

    def find_nearest(
        self,
        query: FloatMatrix,
        k: int,
        filter: Filter | None,
        effort: Effort,
        with_vectors: bool = False,
        on_stage: OnStage[SearchResult] | None = None,
    ) -> SearchResult:
        """Return the k nearest documents that pass the filter; fewer only if fewer pass.

        query: shape (1, dimensions).
        on_stage: called at each stage of the search. The collection does not change while it runs; an
          error that it raises ends the search.
        Raises InvalidFilter; QueryShapeError if the query has other dimensions than the index.
        """
        query = self.metric.as_indexed(query)
        with self._lock.reading():
            if self._index is None:
                return SearchResult([], np.empty(0, dtype=np.float32), query[:0])
            check_vector_size(query.shape[1], self._index)
            selection = self._filter_cache.select(filter, self._documents, self._index.ntotal)
            on_row_stage: OnRowStage | None = None
            if on_stage is not None:

                def on_row_stage(rows: RowNumbers, scores: Scores, fraction_done: float) -> None:
                    on_stage(self._result_of(rows, scores, with_vectors), fraction_done)

            rows, scores = search_rows(self._index, query, k, selection, effort, on_row_stage)
            return self._result_of(rows, scores, with_vectors)

    def _result_of(self, rows: RowNumbers, scores: Scores, with_vectors: bool) -> SearchResult:
        assert self._index is not None
        vectors = self._index.reconstruct_batch(rows) if with_vectors else None
        return SearchResult([self._documents[row] for row in rows.tolist()], scores, vectors)

    def all_vectors(self) -> tuple[list[Document], FloatMatrix]:
        """Return all documents and their vectors, in the order they were added.

        The vectors are as the index stores them.
        """
        with self._lock.reading():
            return list(self._documents.values()), self._stored_vectors()

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """Keep the state unchanged for this block; others may read too."""
        with self._lock.reading():
            yield Snapshot(self._index, self._built_from, self._documents)

    @contextmanager
    def frozen(self) -> Iterator[Snapshot]:
        """Keep the state unchanged for this block, by keeping writers out; searches go on."""
        with self._as_only_writer():
            yield Snapshot(self._index, self._built_from, self._documents)

    @contextmanager
    def _as_only_writer(self) -> Iterator[None]:
        self._lock.refuse_readers()  # a reader that became a writer would wait for itself
        with self._writer_lock:
            yield

    def _append(self, vectors: FloatMatrix) -> int:
        """Add vectors to the index and return the first one's row. No search sees them yet.

        If adding fails, no search will ever see them.
        """
        index = self._index
        assert index is not None
        if vectors.shape[1] != index.d:
            raise VectorShapeError(
                f"the vectors to add have {vectors.shape[1]} dimensions, the index {index.d}; embed "
                f"with the model the index was built with, or build it again"
            )
        first = int(index.ntotal)
        for start in range(0, len(vectors), _VECTORS_PER_ADD):
            with self._lock.writing():
                index.add(vectors[start : start + _VECTORS_PER_ADD])
        return first

    def _drop(self, ids: Iterable[str | None]) -> None:
        for name in ids:
            row = self._rows.pop(str(name), None)
            if row is not None:
                del self._documents[row]

    def _rebuild_if_due(self) -> None:
        index = self._index
        if index is None or not is_rebuild_due(
            self.kind, self._built_from, len(self._rows), index.ntotal
        ):
            return
        try:
            rebuilt = self.kind.build(self._stored_vectors(), self.metric)
        except (MemoryError, RuntimeError):
            # The caller's change is complete, and the old index still gives right answers.
            _logger.warning(
                "the index could not be rebuilt; the next change will try again", exc_info=True
            )
            return
        documents = dict(enumerate(self._documents.values()))
        rows = {str(document.id): row for row, document in documents.items()}
        with self._lock.writing():
            self._index, self._built_from = rebuilt, len(documents)
            self._documents, self._rows = documents, rows
            self._filter_cache.clear()

    def _stored_vectors(self) -> FloatMatrix:
        if self._index is None:
            return np.empty((0, 0), dtype=np.float32)
        rows = np.fromiter(self._documents, dtype=np.int64, count=len(self._documents))
        stored: FloatMatrix = self._index.reconstruct_batch(rows)
        return stored
