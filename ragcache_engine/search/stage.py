"""What a staged search yields, and the types of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
Distances: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]


# Comparing two arrays with == gives no single answer, so stages are compared by identity.
@dataclass(frozen=True, slots=True, eq=False)
class SearchStage:
    """The nearest vectors that a search has found so far.

    ids, distances: shape (k,) for one query, (n, k) for a batch; nearest first, as Faiss writes them,
        with id -1 where fewer than k were found. Stages may share these arrays if nothing new was found,
        so copy them before you write to them.
    fraction_done: share of the search that is done, in (0, 1]: of the probed lists, of the rows, or for
        HNSW of the lengths of all candidate queues.
    final: true for the last stage only, which equals the result of `index.search`.
    """

    ids: Ids
    distances: Distances
    fraction_done: float
    final: bool
