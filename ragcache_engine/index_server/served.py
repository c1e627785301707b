"""An index and its documents, as a server searches them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xxhash

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import InvalidArgument, QueryShapeError, UnknownDocument
from ragcache_engine.index_server.messages import IndexDescription, IndexedDocument
from ragcache_engine.search import SearchStage, astages
from ragcache_engine.search.query import as_rows
from ragcache_engine.search.stage import Vectors

SLICE_S = 0.002
"""The least time of searching between two stages, in seconds."""

Embed = Callable[[str], Sequence[float]]


@dataclass(frozen=True, slots=True)
class FoundRows:
    """A stage of a search. rows: of the documents found, nearest first; distances: of each."""

    rows: tuple[int, ...]
    distances: tuple[float, ...]
    fraction_done: float
    is_final: bool


class ServedIndex:
    """A Faiss index, and the document of each of its vectors.

        >>> import faiss, numpy as np
        >>> index = faiss.IndexFlatL2(2)
        >>> index.add(np.eye(2, dtype=np.float32))
        >>> sky, sea = IndexedDocument("sky", "Blue."), IndexedDocument("sea", "Green.")
        >>> served = ServedIndex(index, {0: sky, 1: sea})
        >>> served.describe().vectors
        2

    documents: by the ids that the index returns: rows, or those of an IndexIDMap. A vector without a
      document is passed over.
    embed: makes the vector of a question, as those of the documents were made; one call at a time. None:
      clients send vectors.
    is_cosine: whether the vectors in the index have length 1, so that a question's must have it too.
    Neither index nor documents may change while they are served.
    """

    def __init__(
        self,
        index: Any,
        documents: Mapping[int, IndexedDocument],
        embed: Embed | None = None,
        *,
        is_cosine: bool = False,
    ) -> None:
        self.documents = documents
        self._index = index
        self._embed = embed
        self._is_cosine = is_cosine
        self._lacks_some = index.ntotal > len(documents)
        self._rows = {document.id: row for row, document in documents.items()}
        self._embedding = DaemonThreads(1, "ragcache-embedding")
        self._lookups = DaemonThreads(os.cpu_count() or 1, "ragcache-neighbours")
        self._description = IndexDescription(
            version=_version_of(documents.values()),
            vectors=index.ntotal,
            dimensions=index.d,
            embeds=embed is not None,
            knows_neighbours=bool(documents) and _gives_vectors(index, next(iter(documents))),
        )

    def describe(self) -> IndexDescription:
        return self._description

    async def read_question(self, vector: Sequence[float] | None, text: str | None) -> Vectors:
        """Return the vector of a question: float32, shape (dimensions,).

        Raises InvalidArgument unless there is either a vector or a text, and for a text without a model;
        QueryShapeError for a vector of another size, or with NaN.
        """
        if (vector is None) == (text is None):
            raise InvalidArgument("a search has either a vector or a text")
        if text is not None:
            if self._embed is None:
                raise InvalidArgument(
                    "this server has no embedding model: give the retriever the one that the index was "
                    "built with, so that it sends vectors"
                )
            vector = await self._embedding.run(partial(self._embed, text))
        rows, is_single = as_rows(vector, self._index.d)
        if not is_single:
            raise QueryShapeError(f"a search has one vector, got shape {rows.shape}")
        found: Vectors = self._as_indexed(rows)[0]
        return found

    def _as_indexed(self, rows: Vectors) -> Vectors:
        if not self._is_cosine:
            return rows
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        unit: Vectors = (rows / np.where(lengths == 0.0, 1.0, lengths)).astype(np.float32)
        return unit

    async def search(self, vector: Vectors, k: int, stages: int) -> AsyncGenerator[FoundRows, None]:
        """Yield what the search has found, in at most so many stages; the last one is the answer.

        The answer has k documents if there are so many. A provisional stage with fewer is left out.
        """
        if self._index.ntotal == 0:
            yield FoundRows((), (), 1.0, is_final=True)
            return
        width = min(2 * k if self._lacks_some else k, self._index.ntotal)
        while True:
            drawn = astages(self._index, vector, width, stages, slice_s=SLICE_S)
            async with aclosing(drawn):
                async for stage in drawn:
                    found = self._with_documents(stage, k)
                    if not stage.final and len(found.rows) == k:
                        yield found
            # Too many vectors without a document were among them.
            is_short = len(found.rows) < min(k, len(self.documents)) and stage.ids[-1] >= 0
            if not is_short or width >= self._index.ntotal:
                yield found
                return
            width, stages = min(2 * width, self._index.ntotal), 1

    def _with_documents(self, stage: SearchStage, k: int) -> FoundRows:
        pairs = zip(stage.ids.tolist(), stage.distances.tolist(), strict=True)
        kept = [pair for pair in pairs if pair[0] in self.documents][:k]
        return FoundRows(
            tuple(row for row, _ in kept),
            tuple(distance for _, distance in kept),
            stage.fraction_done,
            stage.final,
        )

    async def find_neighbours(self, ids: Sequence[str], k: int) -> list[list[IndexedDocument]]:
        """Return for each document the k nearest others, nearest first; none for an unknown id.

        Raises UnknownDocument if the index does not give back the vectors in it.
        """
        if not self._description.knows_neighbours:
            raise UnknownDocument("this index does not give back the vectors in it")
        found: list[list[IndexedDocument]] = []
        for name in ids:
            if (row := self._rows.get(name)) is None:
                found.append([])
            else:
                found.append(await self._lookups.run(partial(self._nearest_others, row, k)))
        return found

    def _nearest_others(self, row: int, k: int) -> list[IndexedDocument]:
        # Twice as many, for itself and for copies of it.
        width = min(2 * k + 1, self._index.ntotal)
        _, ids = self._index.search(self._index.reconstruct(row)[None, :], width)
        others = (one for one in ids[0].tolist() if one != row and one in self.documents)
        return [self.documents[one] for one in others][:k]


def _gives_vectors(index: Any, row: int) -> bool:
    """Return whether the index gives back the vectors in it; make the map that an IVF index needs."""
    try:
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()
        index.reconstruct(row)
    except RuntimeError:  # as Faiss raises
        return False
    return True


def _version_of(documents: Iterator[IndexedDocument] | Any) -> str:
    digest = xxhash.xxh3_64()
    for document in documents:
        for part in (document.id, document.text):
            encoded = part.encode(errors="surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
