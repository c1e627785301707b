"""Searches an index among chosen rows, in the index's own way or by comparing all of them.

A row is the position of a vector in its index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_engine import BadRequest
from ragcache_engine.search import SearchStage
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix
from ragcache_integrations.staging import search_in_stages

RowNumbers = NDArray[np.int64]
Scores = NDArray[np.float32]
OnRowStage = Callable[[RowNumbers, Scores, float], None]
"""Called with what a search would find if it ended now, and with the share that is done, 0 to 1."""

# If a smaller share of the rows is chosen, a graph or a few lists miss too many of them, and
# comparing all of them is cheap.
_MIN_APPROXIMATE_SHARE = 0.1
_ALWAYS_EXHAUSTIVE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly one search looks; None leaves it to the index. Raises BadRequest below 1."""

    nprobe: int | None = None
    ef_search: int | None = None

    def __post_init__(self) -> None:
        for name in ("nprobe", "ef_search"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadRequest(
                    f"{name} must be at least 1, got {value}; leave it out for the default"
                )


@dataclass(frozen=True, slots=True)
class RowSelection:
    """The rows that a search may find.

    bits: one bit for each row of the index, lowest bit first. count: how many rows are chosen.
    """

    bits: NDArray[np.uint8]
    count: int

    @classmethod
    def from_rows(cls, rows: Iterable[int], total: int) -> RowSelection:
        numbers = np.fromiter(rows, dtype=np.int64)
        chosen = np.zeros(total, dtype=bool)
        chosen[numbers] = True
        return cls(np.packbits(chosen, bitorder="little"), len(numbers))

    def selector(self) -> faiss.IDSelector:
        return faiss.IDSelectorBitmap(self.bits)


def search_rows(
    index: faiss.Index,
    query: FloatMatrix,
    k: int,
    selection: RowSelection | None,
    effort: Effort,
    on_row_stage: OnRowStage | None = None,
) -> tuple[RowNumbers, Scores]:
    """Return the k nearest of the chosen rows, nearest first; fewer only if fewer are chosen.

    query: shape (1, dimensions), as indexed. selection: None chooses every row.
    If an approximate search finds fewer than k, all chosen rows are compared; on_row_stage then
    gets the stages of both searches.
    """
    matching = selection.count if selection else index.ntotal
    k = min(k, matching)
    if k == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    few = matching <= max(_ALWAYS_EXHAUSTIVE_ROWS, k, _MIN_APPROXIMATE_SHARE * index.ntotal)
    if not (selection and few):
        rows, scores = search_approximately(index, query, k, selection, effort, on_row_stage)
        if len(rows) == k:
            return rows, scores
    return search_exhaustively(index, query, k, selection, on_row_stage)


def search_approximately(
    index: faiss.Index,
    query: FloatMatrix,
    k: int,
    selection: RowSelection | None,
    effort: Effort,
    on_row_stage: OnRowStage | None = None,
) -> tuple[RowNumbers, Scores]:
    """Search in the index's own way, which may find fewer than k."""
    parameters = _parameters(index, selection, effort.nprobe, effort.ef_search)
    return _run_search(index, query, k, parameters, on_row_stage)


def search_exhaustively(
    index: faiss.Index,
    query: FloatMatrix,
    k: int,
    selection: RowSelection | None,
    on_row_stage: OnRowStage | None = None,
) -> tuple[RowNumbers, Scores]:
    """Compare the query with every chosen row, as the index stores it."""
    if isinstance(index, faiss.IndexHNSW):
        # An HNSW index keeps its vectors in another index, which has no graph.
        index = faiss.downcast_index(index.storage)
    ivf = faiss.try_extract_index_ivf(index)
    every_list = ivf.nlist if ivf is not None else None
    parameters = _parameters(index, selection, every_list, index.ntotal)
    return _run_search(index, query, k, parameters, on_row_stage)


def find_graph(index: faiss.Index) -> Any:
    """Return the HNSW index inside this index, or None."""
    while isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index if isinstance(index, faiss.IndexHNSW) else None


def _run_search(
    index: faiss.Index,
    query: FloatMatrix,
    k: int,
    parameters: faiss.SearchParameters,
    on_row_stage: OnRowStage | None,
) -> tuple[RowNumbers, Scores]:
    if on_row_stage is None:
        scores, rows = index.search(query, k, params=parameters)
    else:

        def show(stage: SearchStage) -> None:
            on_row_stage(stage.ids[0], stage.distances[0], stage.fraction_done)

        scores, rows = search_in_stages(index, query, k, show, parameters)
    found = rows[0] >= 0
    return rows[0][found], scores[0][found]


def _parameters(
    index: faiss.Index, selection: RowSelection | None, nprobe: int | None, ef_search: int | None
) -> faiss.SearchParameters:
    """Return the parameters of one search.

    The index itself is not changed, because searches run in parallel. Its own effort is meant for all
    rows. If only some rows are chosen, the effort grows so that the search meets as many of them; an
    effort that the caller set stays as it is.
    """
    options: dict[str, Any] = {"sel": selection.selector()} if selection else {}
    growth = index.ntotal / max(selection.count, 1) if selection else 1.0
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        lists = nprobe or ceil(ivf.nprobe * growth)
        return faiss.SearchParametersIVF(nprobe=min(lists, ivf.nlist), **options)
    graph = find_graph(index)
    if graph is not None:
        candidates = ef_search or ceil(graph.hnsw.efSearch * growth)
        return faiss.SearchParametersHNSW(efSearch=candidates, **options)
    return faiss.SearchParameters(**options)
