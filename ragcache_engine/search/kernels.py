"""Which of Faiss's ways to compute a distance a flat search takes.

They differ in the last bit: one vector at a time, or many by matrix multiplication, or that again with
the rows dealt out to threads. Staging must never change the choice.
"""

from __future__ import annotations

import faiss

# From here on Faiss may deal the rows of a flat index out to its threads (newer versions do).
ROWS_FOR_THREADS = 10_000


def is_each_query_alone(queries: int, dimensions: int) -> bool:
    """Whether a flat search takes each query by itself, whatever the others are.

    Faiss's threshold is a number of queries in older versions and of queries times dimensions in
    newer ones. Where the product is below it, so is the number.
    """
    return bool(queries * dimensions < faiss.cvar.distance_compute_blas_threshold)


def is_split_among_threads(queries: int, rows: int) -> bool:
    """Whether Faiss may cut the rows of a flat index by its own number of threads."""
    return rows >= ROWS_FOR_THREADS and queries < faiss.omp_get_max_threads()
