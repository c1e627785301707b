"""What a staged search yields, and the array types it speaks in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
Distances: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.int64]


# Two arrays have no single answer to ==, so neither has a stage.
@dataclass(frozen=True, slots=True, eq=False)
class SearchStage:
    """The nearest vectors as far as the search has come.

    ids, distances: shape (k,) for one query, (n, k) for a batch; nearest first, as Faiss writes them,
        with id -1 where fewer than k were found. Stages that found nothing new may share them, so
        copy before writing.
    fraction_done: share of the search that is behind, in (0, 1]; by probed lists, by rows, or for
        HNSW by the size of the candidate queues.
    final: true of the last stage only, which equals `index.search`.
    """

    ids: Ids
    distances: Distances
    fraction_done: float
    final: bool
