"""Check the arguments of a search before it starts, and bring the query into Faiss's form."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from ragcache_engine.errors import EmptyIndex, InvalidTopK, QueryShapeError, UnsupportedStore
from ragcache_engine.search.stage import Vectors


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """The arguments of a search that passed every check.

    rows: float32, shape (n, dim), contiguous; n is 1 for one query.
    is_single: whether the query was 1-d; then the arrays of its stages are 1-d too.
    """

    index: Any
    rows: Vectors
    is_single: bool
    k: int
    count: int
    params: Any
    slice_s: float


def check_query(
    index: Any, query: Any, k: int, count: int, params: Any, slice_s: float | None
) -> Query:
    """Check the arguments of `stages` and return them as a Query.

    Raises UnsupportedStore, InvalidTopK, EmptyIndex, QueryShapeError and ValueError.
    """
    if not isinstance(index, faiss.Index):
        raise UnsupportedStore(
            f"a {type(index).__name__} is no faiss.Index over float vectors; pass the Faiss index "
            f"itself (of a LangChain store: store.index)"
        )
    k = operator.index(k)
    if k < 1:
        raise InvalidTopK(f"at least one document must be asked for, got {k}; raise it to 1")
    count = operator.index(count)
    if count < 1:
        raise ValueError(f"a search has at least one stage, got count={count}; raise it to 1")
    if slice_s is not None and not slice_s >= 0:
        raise ValueError(
            f"slice_s is a time in seconds, got {slice_s}; give None or 0 for no limit"
        )
    if index.ntotal == 0:
        raise EmptyIndex("the index holds no vectors; add documents before asking")
    rows, is_single = as_rows(query, index.d)
    return Query(index, rows, is_single, k, count, params, slice_s or 0.0)


def as_rows(query: Any, dimensions: int) -> tuple[Vectors, bool]:
    """Return the query as contiguous float32 of shape (n, dim), and whether it was a single vector.

    A contiguous float32 array is not copied. Raises QueryShapeError.
    """
    try:
        given = np.asarray(query)
    except ValueError as wrong:
        raise QueryShapeError(f"the query is no array of numbers: {wrong}") from wrong
    if given.dtype.kind not in "fiu":
        raise QueryShapeError(
            f"the query is not made of real numbers (dtype {given.dtype}); give float32, "
            f"shape (dim,) or (n, dim)"
        )
    if given.ndim not in (1, 2):
        raise QueryShapeError(
            f"a query has shape (dim,), a batch (n, dim); this one has shape {given.shape}"
        )
    if given.shape[-1] != dimensions:
        raise QueryShapeError(
            f"the query's vector has {given.shape[-1]} dimensions, the index {dimensions}; embed "
            f"queries with the model the index was built with, or build it again"
        )
    rows: Vectors = np.ascontiguousarray(given, dtype=np.float32)
    flat = rows.reshape(-1)
    # The dot product is a tenth of the work of isfinite. It is infinite or NaN only if a number is, or if
    # a number is enormous.
    with np.errstate(all="ignore"):
        square = float(np.dot(flat, flat))
    if not math.isfinite(square) and not np.isfinite(rows).all():
        # Faiss answers such a query with no documents or with any documents, and raises nothing.
        raise QueryShapeError(
            "the query's vector holds NaN or infinity, which is near to nothing; look at the "
            "embedding model's output, or at the division by a length of zero"
        )
    return rows.reshape(-1, dimensions), given.ndim == 1
