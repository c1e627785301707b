"""Tell which of Faiss's ways to compute distances a flat search takes.

Faiss computes one vector at a time, or many by matrix multiplication, or many with the rows split among
threads. The results differ in the last bit, so a staged search must take the same way as `index.search`.
"""

from __future__ import annotations

import faiss

ROWS_FOR_THREADS = 10_000
"""From this many rows on, Faiss may split a flat index among its threads (newer versions do)."""


def is_each_query_alone(queries: int, dimensions: int) -> bool:
    """Return True if a flat search computes each query by itself, independent of the other queries.

    Faiss compares its threshold with the number of queries in older versions, and with queries times
    dimensions in newer ones. If the product is below the threshold, so is the number.
    """
    return bool(queries * dimensions < faiss.cvar.distance_compute_blas_threshold)


def is_split_among_threads(queries: int, rows: int) -> bool:
    """Return True if Faiss may split the rows of a flat index among its threads."""
    return rows >= ROWS_FOR_THREADS and queries < faiss.omp_get_max_threads()
