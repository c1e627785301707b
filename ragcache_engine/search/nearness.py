"""Finds the documents that are near another one, by the vectors that their client told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.errors import InvalidArgument

LOOKED_AT = 4
"""So many near documents are looked at, as some may have the same text."""


class Nearness:
    """Vectors of documents, by id, compared by the cosine of their angle.

    version: changes with every vector. Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._index: Any = None  # Faiss, which is loaded when there is a vector
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._gone: list[int] = []
        self.version = 0

    def require(self, vector: NDArray[np.float32]) -> None:
        """Raise InvalidArgument for a vector that cannot be compared with the others."""
        if not len(vector) or not np.isfinite(vector).all() or not vector.any():
            raise InvalidArgument("a vector is a list of finite numbers that are not all 0")
        if self._numbers and len(vector) != self._index.d:
            raise InvalidArgument(
                f"the vector has {len(vector)} numbers, and those of the corpus have {self._index.d}: "
                f"embed all its documents with one model, or remove the corpus first"
            )

    def put(self, document_id: str, vector: NDArray[np.float32] | None) -> None:
        """Remember a document's vector in place of an earlier one. None: it has none."""
        self.remove(document_id)
        if vector is None:
            return
        import faiss

        self.version += 1
        if not self._numbers:
            self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(len(vector)))
            self._gone.clear()
        self._numbers[document_id] = self.version
        self._ids[self.version] = document_id
        unit = (vector / np.linalg.norm(vector))[np.newaxis].astype(np.float32)
        self._index.add_with_ids(unit, np.array([self.version], np.int64))

    def remove(self, document_id: str) -> None:
        """Forget a document's vector, if it has one."""
        number = self._numbers.pop(document_id, None)
        if number is not None:
            del self._ids[number]
            # Removing moves all vectors behind it, so it is done for many at a time.
            self._gone.append(number)
            self.version += 1

    def nearest(self, document_id: str) -> list[str]:
        """Return the ids of the nearest other documents, nearest first; none without a vector."""
        number = self._numbers.get(document_id)
        if number is None:
            return []
        if self._gone:
            self._index.remove_ids(np.array(self._gone, np.int64))
            self._gone.clear()
        unit = self._index.reconstruct(number)[np.newaxis]
        _, (found,) = self._index.search(unit, LOOKED_AT + 1)
        return [self._ids[at] for at in found.tolist() if at >= 0 and at != number]
