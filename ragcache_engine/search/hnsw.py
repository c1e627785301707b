"""Search an HNSW index: quick previews with a short candidate queue, then the real search.

Faiss offers no way to pause a walk through the graph. But the cost of a walk grows with the length of
its queue (efSearch), and a walk with a short queue finds most of what one with a long queue finds. So the
previews cost a small share of the search, and their work is thrown away.
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
"""What all previews together may cost, as a share of the search."""
DESCENT = 8
"""The fixed cost of a walk before it uses its queue, counted in queue entries."""
SHORTEST = 8
"""Shortest queue of a preview."""


def preview_lengths(ef_search: int, k: int, count: int) -> list[int]:
    """Return the queue lengths of the previews before the real search, each twice the one before.

    There are as many previews as PREVIEW_SHARE allows, at most count - 1. There is none if the share is
    too small for a queue of length k.
    """
    budget = PREVIEW_SHARE * ef_search
    # Each queue is twice as long as the last, so the budget's number of bits limits their count.
    for number in range(min(count - 1, int(budget).bit_length()), 0, -1):
        first = int((budget - number * DESCENT) / (2**number - 1))
        if first >= max(k, SHORTEST):
            return [first << step for step in range(number)]
    return []


def find_reason_against_previews(params: Any) -> str | None:
    """Return why previews cannot be made with these parameters; None if they can."""
    if params is not None and type(params) is not faiss.SearchParametersHNSW:
        return f"{type(params).__name__} may have settings that this search does not know"
    return None


def search_with_previews(
    index: Any, hnsw: Any, rows: Vectors, k: int, params: Any, count: int, slice_s: float
) -> Iterator[SearchStage]:
    """Yield at most `count` stages: the previews that are worth showing, then the real search.

    index: what to search. hnsw: the HNSW index inside it, which holds the graph.
    """
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
            break  # Everything that is left takes less than one slice.
    yield search_in_one_stage(index, rows, k, params)


def with_queue_length(params: Any, hnsw: Any, ef_search: int) -> Any:
    """Return a copy of the caller's parameters, or else of the index's, with another queue length."""
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
