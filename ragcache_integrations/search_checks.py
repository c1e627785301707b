"""Checks before a search starts, the same for every store."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from ragcache_engine import IndexOutOfStep, InvalidTopK, QueryShapeError


def is_faiss_index(index: Any) -> bool:
    """Return whether the object has a faiss.Index's attributes, whatever its class."""
    return all(hasattr(index, name) for name in ("ntotal", "d", "search"))


def check_top_k(top_k: Any) -> None:
    """Raise InvalidTopK unless this is a whole number, and at least one."""
    # numpy's integers are whole numbers too, but True is no number of documents.
    if isinstance(top_k, bool) or not isinstance(top_k, Integral):
        raise InvalidTopK(
            f"how many documents to find must be a whole number, such as 4, got {top_k!r} "
            f"({type(top_k).__name__})"
        )
    if int(top_k) < 1:
        raise InvalidTopK(f"at least one document must be asked for, got {top_k}; raise it to 1")


def check_same_count(vectors: int, documents: int) -> None:
    """Raise IndexOutOfStep unless there is one document for each vector."""
    if vectors != documents:
        raise IndexOutOfStep(
            f"the index holds {vectors} vectors and its document store {documents} documents; "
            f"load both from one save, or build them again together"
        )


def check_vector_size(size: int, index: Any) -> None:
    """Raise QueryShapeError unless the query's vector has as many dimensions as the index."""
    if size != index.d:
        raise QueryShapeError(
            f"the query's vector has {size} dimensions, the index {index.d}; embed queries with "
            f"the model the index was built with, or build it again"
        )
