"""Merge the results of partial searches into the k nearest, bit for bit as Faiss's own heap would.

Faiss keeps the k nearest vectors in a heap while it scans. Two rules of that heap decide among equal
distances:

- A vector enters only if it is strictly nearer than the farthest vector in the heap.
- When a vector enters, the farthest one leaves; of several equally far ones, the one with the largest id
  (under inner product, the smallest). The result is sorted by the same order.

So if each part is searched with its own heap and the results are merged, the distances are always right.
The ids are right too, with one exception: more vectors share the k-th distance than there is room for,
some of them came from earlier parts, and some came from the part that brought the k-th distance down to
this value. Then the order of the vectors within that part decides which of them Faiss keeps, and Faiss
does not report that order. Such a query is *tied*.

To settle a tied query, the first parts are searched again in one go, up to the part that brought its k-th
distance or further. In this search Faiss itself decides among the equal vectors. Later parts cannot add
an equal vector, only nearer ones. By the rules above, each of those removes the last of the equal
vectors.
"""

from __future__ import annotations

from bisect import insort

import numpy as np

from ragcache_engine.search.stage import Distances, Ids


class Nearest:
    """Keep a sorted list of the k nearest for each query of the batch.

    The lists are plain Python lists of (distance, id), both negated where larger is nearer. Most parts
    change one or two places. For that, plain lists are quicker than numpy calls, because Faiss has just
    emptied the processor's caches.
    """

    def __init__(self, distances: Distances, ids: Ids, end: int, *, larger_is_nearer: bool) -> None:
        """Start from what Faiss found in the first part, which ends at `end`."""
        self._sign = -1 if larger_is_nearer else 1
        self._rows = [
            [
                (self._sign * distance, self._sign * name)
                for distance, name in zip(*row, strict=True)
            ]
            for row in zip(distances.tolist(), ids.tolist(), strict=True)
        ]
        self._reached = [end] * len(ids)
        self._tied = [False] * len(ids)
        self._shown: tuple[Ids, Distances] | None = None

    def merge(self, distances: Distances, ids: Ids, end: int) -> None:
        """Merge what Faiss found in the next part, which ends at `end`."""
        for at, found in enumerate(distances.tolist()):
            kept = self._rows[at]
            worst, _ = pushed_out = kept[-1]
            if self._sign * found[0] >= worst:
                continue
            for distance, name in zip(found, ids[at].tolist(), strict=True):
                far = self._sign * distance
                if far >= worst or far > kept[-1][0]:
                    break  # The rest is farther: Faiss gives the nearest first.
                insort(kept, (far, self._sign * name))
                self._shown = None
                pushed_out = kept.pop()
            last, _ = kept[-1]
            if last != worst:
                self._tied[at] = last == pushed_out[0]
                self._reached[at] = end

    def end_of_ties(self) -> int:
        """Return how far to search in one go to settle every tied query; 0 if none is tied."""
        ends = zip(self._reached, self._tied, strict=True)
        return max((end for end, tied in ends if tied), default=0)

    def settle_ties(self, distances: Distances, ids: Ids) -> None:
        """Settle the tied queries with what Faiss found up to `end_of_ties()` in one go."""
        again = Nearest(distances, ids, 0, larger_is_nearer=self._sign < 0)
        self._shown = None
        for at, kept in enumerate(self._rows):
            if self._tied[at]:
                last, _ = kept[-1]
                nearer = [place for place in kept if place[0] != last]
                equals = [place for place in again._rows[at] if place[0] == last]
                self._rows[at] = nearer + equals[: len(kept) - len(nearer)]

    def arrays(self) -> tuple[Ids, Distances]:
        """Return the ids and distances, shape (n, k), nearest first.

        The arrays are read-only. While nothing changes, each call returns the same arrays.
        """
        if self._shown is None:
            ids = [[self._sign * name for _, name in kept] for kept in self._rows]
            distances = [[self._sign * distance for distance, _ in kept] for kept in self._rows]
            self._shown = np.array(ids, dtype=np.int64), np.array(distances, dtype=np.float32)
            for array in self._shown:
                array.flags.writeable = False
        return self._shown
