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

from bisect import insort

import numpy as np

from ragcache_engine.search.stage import Distances, Ids


class Nearest:
    """A sorted list for each query of the batch.

    Plain lists of (distance, id), both negated where larger is nearer: most pieces change a place or
    two, and right after Faiss has swept the processor's caches that is quicker than a few calls of numpy.
    """

    def __init__(self, distances: Distances, ids: Ids, end: int, *, larger_is_nearer: bool) -> None:
        """Starts from what Faiss found in the first piece, the one up to `end`."""
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
        """Merge what Faiss found in the next piece, which ends at `end`."""
        for at, found in enumerate(distances.tolist()):
            kept = self._rows[at]
            worst, _ = pushed_out = kept[-1]
            if self._sign * found[0] >= worst:
                continue
            for distance, name in zip(found, ids[at].tolist(), strict=True):
                far = self._sign * distance
                if far >= worst or far > kept[-1][0]:
                    break  # They come nearest first.
                insort(kept, (far, self._sign * name))
                self._shown = None
                pushed_out = kept.pop()
            last, _ = kept[-1]
            if last != worst:
                self._tied[at] = last == pushed_out[0]
                self._reached[at] = end

    def end_of_ties(self) -> int:
        """The end up to which one search settles every tied row; 0 if none is tied."""
        ends = zip(self._reached, self._tied, strict=True)
        return max((end for end, tied in ends if tied), default=0)

    def settle_ties(self, distances: Distances, ids: Ids) -> None:
        """What Faiss found when it searched everything up to `end_of_ties()` in one go."""
        again = Nearest(distances, ids, 0, larger_is_nearer=self._sign < 0)
        self._shown = None
        for at, kept in enumerate(self._rows):
            if self._tied[at]:
                last, _ = kept[-1]
                nearer = [place for place in kept if place[0] != last]
                equals = [place for place in again._rows[at] if place[0] == last]
                self._rows[at] = nearer + equals[: len(kept) - len(nearer)]

    def arrays(self) -> tuple[Ids, Distances]:
        """The ids and distances, shape (n, k), nearest first; read-only, the same until they change."""
        if self._shown is None:
            ids = [[self._sign * name for _, name in kept] for kept in self._rows]
            distances = [[self._sign * distance for distance, _ in kept] for kept in self._rows]
            self._shown = np.array(ids, dtype=np.int64), np.array(distances, dtype=np.float32)
            for array in self._shown:
                array.flags.writeable = False
        return self._shown
