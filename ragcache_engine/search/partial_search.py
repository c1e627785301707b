"""A search in pieces: each is searched by Faiss on its own and merged with those before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from ragcache_engine.search.nearest import Nearest
from ragcache_engine.search.stage import Distances, Ids, SearchStage
from ragcache_engine.search.stage_timing import Pace, even_ends


class Pieces(Protocol):
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


def in_pieces(pieces: Pieces, count: int, slice_s: float) -> Iterator[SearchStage]:
    """At most `count` stages over the pieces; ids and distances have shape (n, k)."""
    pace = Pace(even_ends(pieces.total, count, pieces.multiple_of), slice_s)
    nearest: Nearest | None = None
    end = 0
    while end < pieces.total:
        began = time.perf_counter()
        start, end = end, pace.next_end()
        distances, ids = pieces.scan(start, end)
        if nearest is None:
            nearest = Nearest(distances, ids, end, larger_is_nearer=pieces.larger_is_nearer)
        else:
            nearest.take(distances, ids, end)
        pace.took(end, time.perf_counter() - began)
        if end < pieces.total and pace.due():
            yield shown(nearest, end / pieces.total)
    assert nearest is not None
    if again := nearest.search_again():
        nearest.settle(*pieces.scan(0, again))
    yield shown(nearest, 1.0)


def shown(nearest: Nearest, done: float) -> SearchStage:
    return SearchStage(*nearest.arrays(), done, final=done == 1.0)
