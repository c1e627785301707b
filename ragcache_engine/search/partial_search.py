"""A search in pieces: each is searched by Faiss on its own and merged with those before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from ragcache_engine.search.nearest import Nearest
from ragcache_engine.search.stage import Distances, Ids, SearchStage
from ragcache_engine.search.stage_timing import StageTiming, even_ends


class PartialSearch(Protocol):
    """What can be searched from one point to another: probed lists, or rows.

    A scan from 0 to `total` is the whole search, and what a vector's distance comes out as, to the
    last bit, does not depend on where the piece begins and ends.
    """

    total: int
    multiple_of: int
    larger_is_nearer: bool

    def scan(self, start: int, end: int) -> tuple[Distances, Ids]:
        """Faiss's k nearest within the piece, shape (n, k) each."""
        ...


def search_in_parts(search: PartialSearch, count: int, slice_s: float) -> Iterator[SearchStage]:
    """At most `count` stages over the pieces; ids and distances have shape (n, k)."""
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
    return SearchStage(*nearest.arrays(), done, final=done == 1.0)
