"""HNSW: quick looks with a short candidate queue, then the real search.

Faiss offers no way to pause a walk through the graph. But the walk's cost grows with the length of its
queue (efSearch), and a short one finds most of what a long one does. So the looks cost a small share
of the search and their work is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import faiss

from ragcache_engine.search.one_stage import search_in_one_stage
from ragcache_engine.search.stage import SearchStage, Vectors

KINDS = (faiss.IndexHNSWFlat, faiss.IndexHNSWSQ, faiss.IndexHNSWPQ)

PREVIEW_SHARE = 1 / 16
"""What all looks together may cost, as a share of the search."""
DESCENT = 8
"""A search costs about as much as a queue longer by this many would, before its queue is used."""
SHORTEST = 8


def preview_lengths(ef_search: int, k: int, count: int) -> list[int]:
    """The queue lengths of the looks before the real search, each twice the one before.

    As many as the share of PREVIEW_SHARE pays for, none if not even one at length k. Never more
    than count - 1.
    """
    budget = PREVIEW_SHARE * ef_search
    # More than its bits would not fit into the budget, since each is twice as long.
    for number in range(min(count - 1, int(budget).bit_length()), 0, -1):
        first = int((budget - number * DESCENT) / (2**number - 1))
        if first >= max(k, SHORTEST):
            return [first << step for step in range(number)]
    return []


def find_reason_against_previews(params: Any) -> str | None:
    if params is not None and type(params) is not faiss.SearchParametersHNSW:
        return f"{type(params).__name__} may hold settings that are not known here"
    return None


def search_with_previews(
    index: Any, hnsw: Any, rows: Vectors, k: int, params: Any, count: int, slice_s: float
) -> Iterator[SearchStage]:
    """At most `count` stages. `index` is what to search, `hnsw` the graph's owner inside it."""
    settings = params or hnsw.hnsw
    lengths = preview_lengths(settings.efSearch, k, count)
    work = sum(lengths) + settings.efSearch + DESCENT * (len(lengths) + 1)
    done = 0
    unshown_s = 0.0
    for length in lengths:
        began = time.perf_counter()
        stage = search_in_one_stage(index, rows, k, with_queue_length(params, hnsw, length))
        took_s = time.perf_counter() - began
        done += length + DESCENT
        unshown_s += took_s
        if unshown_s >= slice_s:
            unshown_s = 0.0
            yield SearchStage(stage.ids, stage.distances, done / work, final=False)
        elif took_s * (work - done) / (length + DESCENT) < slice_s:
            break  # All that is left comes within one slice.
    yield search_in_one_stage(index, rows, k, params)


def with_queue_length(params: Any, hnsw: Any, ef_search: int) -> Any:
    """The caller's parameters, or the index's, with another queue length; neither is changed."""
    if params is None:
        return faiss.SearchParametersHNSW(
            efSearch=ef_search,
            check_relative_distance=hnsw.hnsw.check_relative_distance,
            bounded_queue=hnsw.hnsw.search_bounded_queue,
        )
    return faiss.SearchParametersHNSW(
        efSearch=ef_search,
        check_relative_distance=params.check_relative_distance,
        bounded_queue=params.bounded_queue,
        sel=params.sel,
    )
