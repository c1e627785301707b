"""Search an index part by part: Faiss searches each part, and the results are merged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from ragcache_engine.search.nearest import Nearest
from ragcache_engine.search.stage import Distances, Ids, SearchStage
from ragcache_engine.search.stage_timing import StageTiming, even_ends


class PartialSearch(Protocol):
    """One search that can be run part by part: over probed lists, or over rows.

    A scan from 0 to `total` is the whole search. Where a part begins and ends does not change any
    distance, to the last bit.
    multiple_of: parts begin and end at multiples of this number. larger_is_nearer: true for inner
      products.
    """

    total: int
    multiple_of: int
    larger_is_nearer: bool

    def scan(self, start: int, end: int) -> tuple[Distances, Ids]:
        """Return the distances and ids of the k nearest within the part, shape (n, k) each."""
        ...


def search_in_parts(search: PartialSearch, count: int, slice_s: float) -> Iterator[SearchStage]:
    """Run the search in parts and yield at most `count` stages, with arrays of shape (n, k).

    slice_s: as in `stages`.
    """
    timing = StageTiming(even_ends(search.total, count, search.multiple_of), slice_s)
    nearest: Nearest | None = None
    end = 0
    while end < search.total:
        began = time.perf_counter()
        start, end = end, timing.next_end()
        distances, ids = search.scan(start, end)
        if nearest is None:
            nearest = Nearest(distances, ids, end, larger_is_nearer=search.larger_is_nearer)
        else:
            nearest.merge(distances, ids, end)
        timing.note_searched(end, time.perf_counter() - began)
        if end < search.total and timing.reset_if_due():
            yield make_stage(nearest, end / search.total)
    assert nearest is not None
    if again := nearest.end_of_ties():
        nearest.settle_ties(*search.scan(0, again))
    yield make_stage(nearest, 1.0)


def make_stage(nearest: Nearest, done: float) -> SearchStage:
    """Return the results so far as a stage. done: the share of the search that is done; 1 is final."""
    return SearchStage(*nearest.arrays(), done, final=done == 1.0)
