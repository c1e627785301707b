"""Search an index of the IVF family in slices of the probed lists, nearest lists first.

The search asks the quantizer once, by the same call that `index.search` makes. Then Faiss's
`search_preassigned` scans slice after slice, in the order in which it would scan all lists. A distance
depends on the query, the list and the vector's place in the list, so slicing between lists changes no
distance.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np

from ragcache_engine.search.kernels import ROWS_FOR_THREADS, is_each_query_alone
from ragcache_engine.search.stage import Distances, Ids, Vectors

KINDS = (faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer, faiss.IndexIVFPQ)
METRICS = (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT)
FLAT_QUANTIZERS = (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP)

ONE_THREAD_A_QUERY = 0
ONE_THREAD_A_QUERY_QUANTIZED_TOGETHER = 3

SCALAR_BITS = ("8bit", "6bit", "4bit", "fp16", "bf16")
SCALAR_KINDS = (*SCALAR_BITS, "8bit_uniform", "4bit_uniform", "8bit_direct", "8bit_direct_signed")
SCALARS = {getattr(faiss.ScalarQuantizer, f"QT_{kind}", None) for kind in SCALAR_KINDS}


def find_reason_against_slices(index: Any, queries: int, params: Any) -> str | None:
    """Return why a search in slices would not be exact, or would be useless; None if neither."""
    if params is not None and type(params) not in (
        faiss.SearchParametersIVF,
        faiss.IVFPQSearchParameters,
    ):
        return f"{type(params).__name__} may have settings that this search does not know"
    if (params or index).nprobe < 2:
        return "a single list cannot be sliced"
    if index.metric_type not in METRICS:
        return "the metric is neither L2 nor inner product"
    if type(index) is faiss.IndexIVFScalarQuantizer and index.sq.qtype not in SCALARS:
        return "the scalar quantizer has its own way to scan"
    if index.parallel_mode not in (ONE_THREAD_A_QUERY, ONE_THREAD_A_QUERY_QUANTIZED_TOGETHER):
        return (
            "Faiss's threads share a query's lists, and the order in which they finish breaks ties"
        )
    if (params or index).max_codes:
        return "the budget of max_codes may end inside a list"
    if index.invlists.use_iterator:
        return "the lists are read through an iterator"
    if not is_quantized_alike(index, queries):
        return "Faiss quantizes a batch in parts, which may change a distance in the last bit"
    return None


def is_quantized_alike(index: Any, queries: int) -> bool:
    """Return True if one call of the quantizer gives what Faiss's calls from several threads give."""
    threads = min(faiss.omp_get_max_threads(), queries)
    if threads == 1 or index.parallel_mode != ONE_THREAD_A_QUERY:
        return True
    if type(index.quantizer) is faiss.IndexHNSWFlat:
        return True
    return (
        type(index.quantizer) in FLAT_QUANTIZERS
        and is_each_query_alone(queries, index.d)
        and index.nlist < ROWS_FOR_THREADS
    )


class PartialIVFSearch:
    """One PartialSearch over an IVF index; `total` counts the probed lists."""

    multiple_of = 1

    def __init__(self, index: Any, rows: Vectors, k: int, params: Any) -> None:
        self._index, self._rows, self._k = index, rows, k
        self._params = params
        self._slice_params = copy_parameters(params)
        self.total = int(min(index.nlist, (params or index).nprobe))
        self.larger_is_nearer = index.metric_type == faiss.METRIC_INNER_PRODUCT
        # In this mode `index.search` splits a batch among threads before it scans, so this does too.
        split = index.parallel_mode == ONE_THREAD_A_QUERY
        self._threads = min(faiss.omp_get_max_threads(), len(rows)) if split else 1
        self._lists: Ids | None = None
        self._list_distances: Distances | None = None

    def scan(self, start: int, end: int) -> tuple[Distances, Ids]:
        if self._lists is None or self._list_distances is None:
            asked = self._params.quantizer_params if self._params else None
            found = self._index.quantizer.search(self._rows, self.total, params=asked)
            self._list_distances, self._lists = found
        self._slice_params.nprobe = end - start
        lists = np.ascontiguousarray(self._lists[:, start:end])
        list_distances = np.ascontiguousarray(self._list_distances[:, start:end])
        distances = np.empty((len(self._rows), self._k), dtype=np.float32)
        ids = np.empty((len(self._rows), self._k), dtype=np.int64)
        arrays = (self._rows, lists, list_distances, distances, ids)
        if self._threads == 1:
            self._scan_rows(*arrays)
        else:
            parts = [np.array_split(array, self._threads) for array in arrays]
            with ThreadPoolExecutor(self._threads) as threads:
                list(threads.map(self._scan_rows, *parts))
        return distances, ids

    def _scan_rows(
        self,
        rows: Vectors,
        lists: Ids,
        list_distances: Distances,
        distances: Distances,
        ids: Ids,
    ) -> None:
        """Scan these lists for these rows, and write the results into `distances` and `ids`."""
        # The wrapper without _c takes no parameters, so it would use the index's own nprobe.
        self._index.search_preassigned_c(
            len(rows),
            faiss.swig_ptr(rows),
            self._k,
            faiss.swig_ptr(lists),
            faiss.swig_ptr(list_distances),
            faiss.swig_ptr(distances),
            faiss.swig_ptr(ids),
            False,
            self._slice_params,
        )


def copy_parameters(params: Any) -> Any:
    """Return a copy of the parameters, in which each slice's nprobe can be set.

    Never write to the original: other searches may be reading it.
    """
    if params is None:
        return faiss.SearchParametersIVF()
    copy = type(params)()
    if params.sel is not None:
        copy.sel = params.sel
    if params.inverted_list_context is not None:
        copy.inverted_list_context = params.inverted_list_context
    if isinstance(params, faiss.IVFPQSearchParameters):
        copy.scan_table_threshold = params.scan_table_threshold
        copy.polysemous_ht = params.polysemous_ht
    return copy
