"""Searches in another thread with the caller's number of Faiss threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def with_faiss_threads_of_caller(call: Callable[P, T]) -> Callable[P, T]:
    """Return a call for another thread, which then has the number of Faiss threads set in this one.

    Faiss keeps that number for each thread, and it decides whether a flat index is searched in stages.
    """
    import faiss

    faiss_threads = faiss.omp_get_max_threads()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        own = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(faiss_threads)
        try:
            return call(*args, **kwargs)
        finally:
            faiss.omp_set_num_threads(own)  # the thread belongs to a pool, which others use

    return run
