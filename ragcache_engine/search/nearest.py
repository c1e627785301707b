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

from ragcache_engine.search.stage import Distances, Ids


class Nearest:
    """distances, ids: shape (n, k), nearest first; `take` and `settle` write into them."""

    def __init__(self, distances: Distances, ids: Ids, end: int, *, larger_is_nearer: bool) -> None:
        """Starts from what Faiss found in the first piece, the one up to `end`; keeps the arrays."""
        self.distances = distances
        self.ids = ids
        self._sign = -1 if larger_is_nearer else 1
        self._reached = [end] * len(ids)
        self._tied = [False] * len(ids)

    def take(self, distances: Distances, ids: Ids, end: int) -> None:
        """Merge what Faiss found in the next piece, which ends at `end`."""
        worst = self.distances[:, -1:]
        enter = distances > worst if self._sign < 0 else distances < worst
        # They come sorted, so those that enter stand at the beginning of their row.
        for row, entering in enumerate(enter.sum(axis=1).tolist()):
            if entering:
                self._take(row, distances[row, :entering], ids[row, :entering], end)

    def _take(self, row: int, distances: Distances, ids: Ids, end: int) -> None:
        k = self.ids.shape[1]
        both = np.concatenate((self.distances[row], distances))
        both_ids = np.concatenate((self.ids[row], ids))
        order = np.lexsort((both_ids * self._sign, both * self._sign))
        last, first_out = both[order[k - 1]], both[order[k]]
        if last != self.distances[row, -1]:
            self._tied[row] = bool(last == first_out)
            self._reached[row] = end
        self.distances[row] = both[order[:k]]
        self.ids[row] = both_ids[order[:k]]

    def search_again(self) -> int:
        """The end up to which one search settles every tied row; 0 if none is tied."""
        ends = zip(self._reached, self._tied, strict=True)
        return max((end for end, tied in ends if tied), default=0)

    def settle(self, distances: Distances, ids: Ids) -> None:
        """What Faiss found when it searched everything up to `search_again()` in one go."""
        for row, tied in enumerate(self._tied):
            if tied:
                last = self.distances[row, -1]
                kept = int((self.distances[row] != last).sum())
                equals = np.flatnonzero(distances[row] == last)[: len(ids[row]) - kept]
                self.ids[row, kept:] = ids[row, equals]
                self.distances[row, kept:] = distances[row, equals]
