"""An index and its documents, as a server searches them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import xxhash

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import InvalidArgument, QueryShapeError, UnknownDocument
from ragcache_engine.index_server.messages import IndexDescription, IndexedDocument
from ragcache_engine.search import SearchStage, stages
from ragcache_engine.search.query import as_rows
from ragcache_engine.search.stage import Vectors
from ragcache_engine.search.wrapped import innermost_index

SLICE_S = 0.002
"""The least time of searching between two stages, in seconds."""

SAMPLED = 64
"""How many vectors the version of an index depends on."""

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
    as_indexed: brings vectors, float32 of shape (n, dimensions), into the form that they have in the
      index, such as length 1; None: they are in it.
    Neither index nor documents may change while they are served. As many searches run at a time as there
    are cores; the others wait in order.
    """

    def __init__(
        self,
        index: Any,
        documents: Mapping[int, IndexedDocument],
        embed: Embed | None = None,
        *,
        as_indexed: Callable[[Vectors], Vectors] | None = None,
    ) -> None:
        self.documents = documents
        self._index = index
        self._embed = embed
        self._as_indexed = as_indexed
        self._rows = {document.id: row for row, document in documents.items()}
        self._embedding = DaemonThreads(1, "ragcache-embedding")
        self._searching = DaemonThreads(os.cpu_count() or 1, "ragcache-index")
        knows_neighbours = bool(documents) and _gives_vectors(index, next(iter(documents)))
        self._description = IndexDescription(
            version=self._version(knows_neighbours),
            vectors=index.ntotal,
            dimensions=index.d,
            embeds=embed is not None,
            knows_neighbours=knows_neighbours,
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
        found: Vectors = (self._as_indexed(rows) if self._as_indexed else rows)[0]
        return found

    async def search(self, vector: Vectors, k: int, count: int) -> AsyncGenerator[FoundRows, None]:
        """Yield what the search has found, in at most `count` stages; the last one is the answer.

        The answer has k documents if the index finds so many. A provisional stage with fewer is left out.
        The search does not wait for its reader. Closing the generator ends it after the part that runs;
        until then no other search takes its place.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[FoundRows | BaseException] = asyncio.Queue()
        has_left = threading.Event()

        def send(what: FoundRows | BaseException) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, what)
            except RuntimeError:  # the loop has closed
                has_left.set()

        def search() -> None:
            try:
                for found in self._search(vector, k, count):
                    if has_left.is_set():
                        return
                    send(found)
            except BaseException as error:
                send(error)

        future = self._searching.submit(search)
        try:
            is_last = False
            while not is_last:
                what = await arrived.get()
                if isinstance(what, BaseException):
                    raise what
                is_last = what.is_final
                yield what
        finally:
            has_left.set()
            future.cancel()

    def _search(self, vector: Vectors, k: int, count: int) -> Iterator[FoundRows]:
        if self._index.ntotal == 0:
            yield FoundRows((), (), 1.0, is_final=True)
            return
        width, there_are = k, min(k, len(self.documents))
        while True:
            for stage in stages(self._index, vector, width, count, slice_s=SLICE_S):
                found = self._with_documents(stage, k)
                if not stage.final and len(found.rows) == k:
                    yield found
            # Some of those found may be vectors without a document.
            is_short = len(found.rows) < there_are and stage.ids[-1] >= 0
            if not is_short or width >= self._index.ntotal:
                yield found
                return
            width, count = min(2 * width, self._index.ntotal), 1

    def _with_documents(self, stage: SearchStage, k: int) -> FoundRows:
        pairs = zip(stage.ids.tolist(), stage.distances.tolist(), strict=True)
        kept = [pair for pair in pairs if pair[0] in self.documents][:k]
        return FoundRows(
            tuple(row for row, _ in kept),
            tuple(distance for _, distance in kept),
            stage.fraction_done,
            stage.final,
        )

    def vector(self, row: int) -> Sequence[float] | None:
        """Return the vector of a document; None if the index keeps none."""
        if not self._description.knows_neighbours:
            return None
        vector: list[float] = self._index.reconstruct(row).tolist()
        return vector

    async def find_neighbours(self, ids: Sequence[str], k: int) -> list[list[int]]:
        """Return for each document the rows of the k nearest with another text, nearest first.

        For an unknown id there are none. Raises UnknownDocument if the index does not give back the
        vectors in it.
        """
        if not self._description.knows_neighbours:
            raise UnknownDocument("this index does not give back the vectors in it")
        return await self._searching.run(partial(self._find_neighbours, ids, k))

    def _find_neighbours(self, ids: Sequence[str], k: int) -> list[list[int]]:
        known = [row for row in dict.fromkeys(map(self._rows.get, ids)) if row is not None]
        if not known:
            return [[] for _ in ids]
        vectors = np.stack([self._index.reconstruct(row) for row in known])
        # Twice as many, as the document itself and copies of it are among them.
        width = min(2 * k + 1, self._index.ntotal)
        _, near = self._index.search(vectors, width)
        found = {
            row: self._with_other_texts(row, rows)[:k]
            for row, rows in zip(known, near.tolist(), strict=True)
        }
        return [found.get(self._rows.get(name, -1), []) for name in ids]

    def _with_other_texts(self, row: int, rows: Sequence[int]) -> list[int]:
        text = self.documents[row].text
        return [one for one in rows if one in self.documents and self.documents[one].text != text]

    def _version(self, gives_vectors: bool) -> str:
        digest = xxhash.xxh3_64(f"{self._index.ntotal}/{self._index.d}".encode())
        for document in self.documents.values():
            told = json.dumps(document.to_json(), default=repr)
            digest.update(f"{len(told)}:{told}".encode())
        if gives_vectors:
            for row in islice(self.documents, SAMPLED):
                digest.update(self._index.reconstruct(row).tobytes())
        return digest.hexdigest()


def _gives_vectors(index: Any, row: int) -> bool:
    """Return whether the index gives back the vectors in it; make the map that an IVF index needs."""
    core = innermost_index(index)
    if "FastScan" in type(core).__name__:
        return False  # one that was read from a file crashes the process
    try:
        if hasattr(core, "make_direct_map"):
            core.make_direct_map()
        index.reconstruct(row)
    except RuntimeError:  # as Faiss raises
        return False
    return True
