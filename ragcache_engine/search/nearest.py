"""The k nearest of everything searched so far, to the bit what Faiss's own heap would hold.

Faiss keeps the k best in a heap while it scans. Two rules of that heap decide among equal distances:

- A vector gets in only if it is strictly nearer than the worst one there.
- When one gets in, the worst leaves; of equally bad ones the one with the largest id (under inner
  product, the smallest). The result is sorted by the same order.

So if piece after piece is searched with a heap of its own and merged, the distances always come out
right, and so do the ids, with one exception: the k-th distance belongs to more vectors than there is
room for, and some of them came from an earlier piece, some from the one that pushed the k-th distance
down to this value. Which of them Faiss keeps then depends on their order within that piece. Such a
row is *tied*.

A tied row is settled by searching the first pieces again, in one go, up to (at least) the piece that
brought its k-th distance. There Faiss itself decides among the equals. Nothing after that piece can
add an equal one, only nearer ones, and each of those evicts the last of the equals, as above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.search.stage import Distances, Ids


class Nearest:
    """distances, ids: shape (n, k), nearest first; replaced, never changed in place, by `take`."""

    def __init__(self, distances: Distances, ids: Ids, end: int, *, larger_is_nearer: bool) -> None:
        """Starts from what Faiss found in the first piece, the one up to `end`."""
        self.distances = distances
        self.ids = ids
        self._sign = -1 if larger_is_nearer else 1
        self._reached: NDArray[np.int64] = np.full(len(ids), end)
        self._tied: NDArray[np.bool_] = np.zeros(len(ids), dtype=bool)

    def take(self, distances: Distances, ids: Ids, end: int) -> None:
        """Merge what Faiss found in the next piece, which ends at `end`."""
        worst = self.distances[:, -1:]
        enters = distances > worst if self._sign < 0 else distances < worst
        if not enters.any():
            return
        k = ids.shape[1]
        # What does not enter is set to the worst distance there was: k better ones are left, or
        # the row is not full, and then that is Faiss's own sign for an empty place.
        both = np.concatenate([self.distances, np.where(enters, distances, worst)], axis=1)
        both_ids = np.concatenate([self.ids, np.where(enters, ids, -1)], axis=1)
        old = np.concatenate([np.ones_like(enters), enters], axis=1)
        order = np.lexsort((both_ids * self._sign, ~old, both * self._sign))[:, :k]
        self.distances = np.take_along_axis(both, order, axis=1)
        self.ids = np.take_along_axis(both_ids, order, axis=1)
        now = self.distances[:, -1:]
        nearer = (now != worst)[:, 0]
        near_enough = (both * self._sign <= now * self._sign).sum(axis=1)
        self._tied = np.where(nearer, near_enough > k, self._tied)
        self._reached = np.where(nearer, end, self._reached)

    def search_again(self) -> int:
        """The end up to which one search settles every tied row; 0 if none is tied."""
        return int(self._reached[self._tied].max()) if self._tied.any() else 0

    def settle(self, distances: Distances, ids: Ids) -> None:
        """What Faiss found when it searched everything up to `search_again()` in one go."""
        self.distances, self.ids = self.distances.copy(), self.ids.copy()
        for row in np.flatnonzero(self._tied):
            last = self.distances[row, -1]
            kept = int((self.distances[row] != last).sum())
            equals = np.flatnonzero(distances[row] == last)[: len(ids[row]) - kept]
            self.ids[row, kept:] = ids[row, equals]
            self.distances[row, kept:] = distances[row, equals]
        self._tied[:] = False
