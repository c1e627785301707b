"""Search an IndexFlat in ranges of rows, with Faiss's exact distances.

Faiss computes distances in blocks of rows. A range that ends where a block ends consists of the same
blocks, so the distances are the same to the last bit. Selecting a range with an IDSelectorRange costs
nothing: Faiss only moves its pointer.
"""

from __future__ import annotations

from typing import Any

import faiss

from ragcache_engine.search.kernels import is_each_query_alone, is_split_among_threads
from ragcache_engine.search.stage import Distances, Ids, Vectors

KINDS = (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP)
METRICS = (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT)


def find_reason_against_ranges(index: Any, queries: int, k: int, params: Any) -> str | None:
    """Return why a search in ranges would not be exact, or would be slow; None if neither."""
    if index.metric_type not in METRICS:
        return "the metric is neither L2 nor inner product"
    if params is not None and params.sel is not None:
        return "the selector would be asked about every row of every range"
    if is_split_among_threads(queries, index.ntotal):
        return "Faiss splits the rows among its threads, in blocks that no range can reproduce"
    if k >= faiss.cvar.distance_compute_min_k_reservoir:
        return "for so large a k Faiss keeps a reservoir, which breaks ties by the order of arrival"
    if k == 1 and not is_each_query_alone(queries, index.d):
        return "for k = 1 and many queries Faiss has a kernel that breaks ties in its own way"
    return None


class PartialFlatSearch:
    """One PartialSearch over a flat index; `total` counts the rows of the index."""

    def __init__(self, index: Any, rows: Vectors, k: int) -> None:
        self._index, self._rows, self._k = index, rows, k
        self.total = int(index.ntotal)
        self.multiple_of = int(faiss.cvar.distance_compute_blas_database_bs)
        self.larger_is_nearer = index.metric_type == faiss.METRIC_INNER_PRODUCT

    def scan(self, start: int, end: int) -> tuple[Distances, Ids]:
        within = faiss.SearchParameters(sel=faiss.IDSelectorRange(start, end))
        distances, ids = self._index.search(self._rows, self._k, params=within)
        return distances, ids
