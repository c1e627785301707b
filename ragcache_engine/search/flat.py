"""IndexFlat in row ranges.

Faiss computes distances in blocks of rows. Pieces that end where its blocks end are the same blocks, so
the distances are the same to the last bit. An IDSelectorRange costs nothing there: Faiss only moves
its pointer.
"""

from __future__ import annotations

from typing import Any

import faiss

from ragcache_engine.search.kernels import is_each_query_alone, is_split_among_threads
from ragcache_engine.search.stage import Distances, Ids, Vectors

KINDS = (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP)
METRICS = (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT)


def find_reason_against_ranges(index: Any, queries: int, k: int, params: Any) -> str | None:
    """What speaks against pieces, or None if they are exact."""
    if index.metric_type not in METRICS:
        return "the metric is neither L2 nor inner product"
    if params is not None and params.sel is not None:
        return "the selector would be asked about every row in every piece"
    if is_split_among_threads(queries, index.ntotal):
        return "Faiss deals the rows out to its threads, in blocks no piece can reproduce"
    if k >= faiss.cvar.distance_compute_min_k_reservoir:
        return "so large a k is kept in a reservoir, which breaks ties by its own history"
    if k == 1 and not is_each_query_alone(queries, index.d):
        return "the one nearest of many queries comes from a kernel with ties of its own"
    return None


class PartialFlatSearch:
    def __init__(self, index: Any, rows: Vectors, k: int) -> None:
        self._index, self._rows, self._k = index, rows, k
        self.total = int(index.ntotal)
        self.multiple_of = int(faiss.cvar.distance_compute_blas_database_bs)
        self.larger_is_nearer = index.metric_type == faiss.METRIC_INNER_PRODUCT

    def scan(self, start: int, end: int) -> tuple[Distances, Ids]:
        within = faiss.SearchParameters(sel=faiss.IDSelectorRange(start, end))
        distances, ids = self._index.search(self._rows, self._k, params=within)
        return distances, ids
