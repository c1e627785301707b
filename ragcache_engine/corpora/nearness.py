"""Finds the documents that are near another one, by the vectors that their client told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.errors import InvalidArgument

LOOKED_AT = 4
"""So many near documents are looked at, as some may have the same text."""

FEW_GONE = 64
"""Removing a vector moves all behind it, so it is done for so many at a time at least."""


class Nearness:
    """Vectors of documents, by id, compared by the cosine of their angle.

    version: changes with every vector that comes, changes or goes. Not safe to share between threads.
    """

    def __init__(self) -> None:
        self._index: Any = None  # Faiss, which is loaded when there is a vector
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._gone: list[int] = []
        self.version = 0

    def __len__(self) -> int:
        """Count the documents that have a vector."""
        return len(self._numbers)

    def put(self, document_id: str, vector: NDArray[np.float32] | None) -> None:
        """Remember a document's vector in place of an earlier one. None: it has none.

        Raises InvalidArgument for a vector that cannot be compared with the others; then nothing has
        changed.
        """
        if vector is None:
            return self.remove(document_id)
        unit = self._require_unit(vector)
        number = self._numbers.get(document_id)
        if number is not None and np.array_equal(self._index.reconstruct(number), unit):
            return None
        index = self._index if self._numbers else _make_index(len(unit))
        self.remove(document_id)
        self.version += 1
        if index is not self._index:
            self._index = index
            self._gone.clear()
        self._numbers[document_id] = self.version
        self._ids[self.version] = document_id
        self._index.add_with_ids(unit[np.newaxis], np.array([self.version], np.int64))
        return None

    def remove(self, document_id: str) -> None:
        """Forget a document's vector, if it has one."""
        number = self._numbers.pop(document_id, None)
        if number is not None:
            del self._ids[number]
            self._gone.append(number)
            self.version += 1
            if len(self._gone) > max(FEW_GONE, len(self._numbers)):
                self._remove_gone()

    def nearest(self, document_id: str) -> list[str]:
        """Return the ids of the nearest other documents, nearest first; none without a vector."""
        number = self._numbers.get(document_id)
        if number is None:
            return []
        if self._gone:
            self._remove_gone()
        unit = self._index.reconstruct(number)[np.newaxis]
        _, (found,) = self._index.search(unit, LOOKED_AT + 1)
        return [self._ids[at] for at in found.tolist() if at >= 0 and at != number]

    def _remove_gone(self) -> None:
        self._index.remove_ids(np.array(self._gone, np.int64))
        self._gone.clear()

    def _require_unit(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a vector of length 1 in this direction. Raises InvalidArgument."""
        if not len(vector) or not np.isfinite(vector).all() or not vector.any():
            raise InvalidArgument("a vector is a list of finite numbers that are not all 0")
        if self._numbers and len(vector) != self._index.d:
            raise InvalidArgument(
                f"the vector has {len(vector)} numbers, and those of the corpus have {self._index.d}: "
                f"embed all its documents with one model, or remove the corpus first"
            )
        # As float64: a square of a float32 may be none.
        unit: NDArray[np.float32] = (vector / np.linalg.norm(vector.astype(np.float64))).astype(
            np.float32
        )
        return unit


def _make_index(dimensions: int) -> Any:
    try:
        import faiss
    except ImportError:
        raise InvalidArgument(
            "vectors need Faiss where the server runs: install faiss-cpu there, or leave them out"
        ) from None
    return faiss.IndexIDMap2(faiss.IndexFlatIP(dimensions))
