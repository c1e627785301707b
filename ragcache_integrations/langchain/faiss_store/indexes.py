"""The kinds of index a store may have: what each builds, when it is built anew, how it is searched.

A row is the position of a vector in its index. Faiss cannot take a vector out of every kind of
index, so none is ever taken out of one: a search is told which rows count, and an index too full of
rows that do not is built anew from those that do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import sqrt
from typing import Any, ClassVar, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_engine import BadRequest, ConfigError, UnsupportedIndex, VectorShapeError
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix, Metric

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]

# A third of the rows dead: an index is built anew once for every two deletions a live row.
_MOST_DEAD_SHARE = 1 / 3
# Below this share of matching rows a graph or a few lists miss too much, and comparing all of them
# costs little.
_LEAST_APPROXIMATE_SHARE = 0.1
_FEW_ROWS = 1_000
# From Faiss's guidelines: fewer vectors a list make poor centres.
_LEAST_VECTORS_A_LIST = 39


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard one search tries; None leaves it to the index. Raises BadRequest below 1."""

    nprobe: int | None = None
    ef_search: int | None = None

    def __post_init__(self) -> None:
        for name in ("nprobe", "ef_search"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadRequest(
                    f"{name} must be at least 1, got {value}; leave it out for the default"
                )


class IndexKind(Protocol):
    """Builds indexes of one kind and says when the present one no longer serves."""

    name: ClassVar[str]

    @property
    def effort(self) -> Effort:
        """What a search takes if it says nothing."""

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        """An index that holds these vectors, in this order; shape (n, dimensions), n >= 1."""

    def is_outgrown(self, built_from: int, live: int) -> bool:
        """Whether an index built from so many vectors is too small for those that live now."""

    def check_effort(self, effort: Effort) -> None:
        """Raises BadRequest for an effort that this kind knows nothing of."""


@dataclass(frozen=True, slots=True)
class FlatIndex:
    """Compares the query with every vector. Exact; hard to beat below some ten thousand."""

    name: ClassVar[str] = "flat"

    @property
    def effort(self) -> Effort:
        return Effort()

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        index = faiss.IndexFlat(vectors.shape[1], metric.in_faiss)
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return False

    def check_effort(self, effort: Effort) -> None:
        _refuse(effort, self.name)


@dataclass(frozen=True, slots=True)
class IVFIndex:
    """Vectors in lists around centres; a search looks into the nearest `nprobe` lists.

    It trains itself: with fewer than `train_from` vectors it is a flat index, which is exact and
    quick at that size, and it is trained anew whenever the vectors have become four times as many.

    nlist: lists; by default 4 times the root of the vectors' number, at every training.
    nprobe: lists a search looks into, unless it says otherwise.
    train_from: vectors needed for the first training; by default 39 a list, or 5,000.
    """

    nlist: int | None = None
    nprobe: int = 16
    train_from: int | None = None

    name: ClassVar[str] = "ivf"

    def __post_init__(self) -> None:
        _check_positive(self, "nlist", "nprobe", "train_from")
        if self.nlist and self.trained_from < self.nlist:
            raise ConfigError(
                f"train_from={self.train_from} vectors cannot make nlist={self.nlist} lists; raise "
                f"train_from or lower nlist"
            )

    @property
    def trained_from(self) -> int:
        return self.train_from or (self.nlist * _LEAST_VECTORS_A_LIST if self.nlist else 5_000)

    @property
    def effort(self) -> Effort:
        return Effort(nprobe=self.nprobe)

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        count, dimensions = vectors.shape
        if count < self.trained_from:
            return FlatIndex().build(vectors, metric)
        nlist = self.nlist or min(int(4 * sqrt(count)), max(1, count // _LEAST_VECTORS_A_LIST))
        index = faiss.index_factory(dimensions, f"IVF{nlist},Flat", metric.in_faiss)
        index.cp.spherical = metric is Metric.COSINE
        index.cp.min_points_per_centroid = 1  # the user chose, and Faiss would print
        index.train(vectors)
        index.make_direct_map()  # rows can be read back
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return live >= self.trained_from and (
            built_from < self.trained_from or live >= 4 * built_from
        )

    def check_effort(self, effort: Effort) -> None:
        _refuse(Effort(ef_search=effort.ef_search), self.name)


@dataclass(frozen=True, slots=True)
class HNSWIndex:
    """A graph of neighbours that a search walks along. Quick at any size; adding is slow.

    m: neighbours a vector is linked to.
    ef_construction, ef_search: candidates kept while the graph is made, and while it is searched.
    """

    m: int = 32
    ef_construction: int = 200
    ef_search: int = 64

    name: ClassVar[str] = "hnsw"

    def __post_init__(self) -> None:
        _check_positive(self, "m", "ef_construction", "ef_search")
        if self.m < 2:
            raise ConfigError("m must be at least 2: a vector with one neighbour leads nowhere")

    @property
    def effort(self) -> Effort:
        return Effort(ef_search=self.ef_search)

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        index = faiss.IndexHNSWFlat(vectors.shape[1], self.m, metric.in_faiss)
        index.hnsw.efConstruction = self.ef_construction
        index.hnsw.efSearch = self.ef_search
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return False

    def check_effort(self, effort: Effort) -> None:
        _refuse(Effort(nprobe=effort.nprobe), self.name)


class GivenIndex:
    """An index of the user's own: trained, and empty. Copies of it are filled; it stays as it is.

    Raises UnsupportedIndex for one that is not, and for one that cannot search among chosen rows or
    read a row back.
    """

    name: ClassVar[str] = "given"

    def __init__(self, index: faiss.Index) -> None:
        if not index.is_trained:
            raise UnsupportedIndex(
                "the given index is not trained; call its train() with a sample of the vectors, or "
                "leave training to index='ivf'"
            )
        if index.ntotal:
            raise UnsupportedIndex(
                f"the given index holds {index.ntotal} vectors whose documents the store does not "
                f"know; give an empty one, and add the documents"
            )
        self._empty = faiss.clone_index(index)
        _make_readable(self._empty)
        self._try_out()

    @classmethod
    def like(cls, filled: faiss.Index) -> GivenIndex:
        """The kind of an index that already holds vectors."""
        empty = faiss.clone_index(filled)
        empty.reset()
        return cls(empty)

    @property
    def effort(self) -> Effort:
        ivf, graph = faiss.try_extract_index_ivf(self._empty), _graph_of(self._empty)
        return Effort(
            nprobe=ivf.nprobe if ivf is not None else None,
            ef_search=graph.hnsw.efSearch if graph is not None else None,
        )

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        if vectors.shape[1] != self._empty.d:
            raise VectorShapeError(
                f"the vectors have {vectors.shape[1]} dimensions, the given index {self._empty.d}; "
                f"build the index for this embedding model"
            )
        index = faiss.clone_index(self._empty)
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return False

    def check_effort(self, effort: Effort) -> None:
        ours = self.effort
        _refuse(
            Effort(
                nprobe=None if ours.nprobe else effort.nprobe,
                ef_search=None if ours.ef_search else effort.ef_search,
            ),
            f"given {type(self._empty).__name__}",
        )

    def _try_out(self) -> None:
        """Do once, with one vector, everything the store will ask for."""
        trial = faiss.clone_index(self._empty)
        vector = np.ones((1, trial.d), dtype=np.float32)
        try:
            trial.add(vector)
            approximate(trial, vector, 1, Selection.of([0], 1), self.effort)
            trial.reconstruct_batch(np.zeros(1, dtype=np.int64))
        except RuntimeError as error:
            raise UnsupportedIndex(
                f"{type(trial).__name__} cannot be searched among chosen rows or read back, which "
                f"filters and deletion need; flat, IVF, HNSW and scalar-quantizer indexes can, "
                f"without IDMap around them"
            ) from error


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that count in a search. bits: one a row, lowest bit first."""

    bits: NDArray[np.uint8]
    count: int

    @classmethod
    def of(cls, rows: list[int], total: int) -> Selection:
        chosen = np.zeros(total, dtype=bool)
        chosen[rows] = True
        return cls(np.packbits(chosen, bitorder="little"), len(rows))

    def selector(self) -> faiss.IDSelector:
        return faiss.IDSelectorBitmap(self.bits)


def kind_of(index: object) -> IndexKind:
    """What the user wrote for an index, as its kind. Raises ConfigError."""
    if isinstance(index, (FlatIndex, IVFIndex, HNSWIndex, GivenIndex)):
        return index
    if isinstance(index, faiss.Index):
        return GivenIndex(index)
    if isinstance(index, str) and index in _KINDS:
        kind: IndexKind = _KINDS[index]()
        return kind
    raise ConfigError(
        f"index={index!r} is not known; choose 'flat', 'ivf' or 'hnsw', one of FlatIndex, IVFIndex "
        f"and HNSWIndex with its settings, or give a faiss.Index"
    )


def search_rows(
    index: faiss.Index, query: FloatMatrix, k: int, among: Selection | None, effort: Effort
) -> tuple[Rows, Scores]:
    """The k nearest of the chosen rows, nearest first; fewer only if fewer are chosen.

    query: shape (1, dimensions), as indexed. among: None chooses every row.
    What an approximate search cannot fill is searched for exactly.
    """
    matching = among.count if among else index.ntotal
    k = min(k, matching)
    if k == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    few = matching <= max(_FEW_ROWS, k, _LEAST_APPROXIMATE_SHARE * index.ntotal)
    if not (among and few):
        rows, scores = approximate(index, query, k, among, effort)
        if len(rows) == k:
            return rows, scores
    return exhaustive(index, query, k, among)


def approximate(
    index: faiss.Index, query: FloatMatrix, k: int, among: Selection | None, effort: Effort
) -> tuple[Rows, Scores]:
    """The index's own search; it may find fewer than k."""
    return _searched(index, query, k, _parameters(index, among, effort.nprobe, effort.ef_search))


def exhaustive(
    index: faiss.Index, query: FloatMatrix, k: int, among: Selection | None
) -> tuple[Rows, Scores]:
    """Compares every chosen row, as the index stores it."""
    if isinstance(index, faiss.IndexHNSW):
        # The graph's vectors lie in an index of their own, which has no graph.
        index = faiss.downcast_index(index.storage)
    ivf = faiss.try_extract_index_ivf(index)
    every_list = ivf.nlist if ivf is not None else None
    return _searched(index, query, k, _parameters(index, among, every_list, index.ntotal))


def wants_rebuild(kind: IndexKind, built_from: int, live: int, rows: int) -> bool:
    """Whether the dead rows are too many, or the index was built for fewer vectors than there are."""
    return (rows - live) > _MOST_DEAD_SHARE * rows or kind.is_outgrown(built_from, live)


def settings_of(kind: IndexKind) -> dict[str, Any]:
    """The kind as JSON; `kind_from` reads it. A given index is known by the index itself."""
    if isinstance(kind, GivenIndex):
        return {"kind": kind.name}
    return {"kind": kind.name, **{f.name: getattr(kind, f.name) for f in fields(kind)}}  # type: ignore[arg-type]


def kind_from(settings: dict[str, Any], index: faiss.Index | None) -> IndexKind:
    """Raises KeyError, TypeError or ConfigError for what `settings_of` did not write."""
    settings = dict(settings)
    name = settings.pop("kind")
    if name == GivenIndex.name:
        return GivenIndex.like(index)
    kind: IndexKind = _KINDS[name](**settings)
    return kind


_KINDS: dict[str, Any] = {kind.name: kind for kind in (FlatIndex, IVFIndex, HNSWIndex)}


def _searched(
    index: faiss.Index, query: FloatMatrix, k: int, parameters: faiss.SearchParameters
) -> tuple[Rows, Scores]:
    scores, rows = index.search(query, k, params=parameters)
    found = rows[0] >= 0
    return rows[0][found], scores[0][found]


def _parameters(
    index: faiss.Index, among: Selection | None, nprobe: int | None, ef_search: int | None
) -> faiss.SearchParameters:
    """Parameters of one search; the index itself stays as it is, since searches run side by side."""
    options: dict[str, Any] = {"sel": among.selector()} if among else {}
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        return faiss.SearchParametersIVF(nprobe=min(nprobe or ivf.nprobe, ivf.nlist), **options)
    graph = _graph_of(index)
    if graph is not None:
        return faiss.SearchParametersHNSW(efSearch=ef_search or graph.hnsw.efSearch, **options)
    return faiss.SearchParameters(**options)


def _graph_of(index: faiss.Index) -> Any:
    """The HNSW index inside, if there is one."""
    while isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index if isinstance(index, faiss.IndexHNSW) else None


def _make_readable(index: faiss.Index) -> None:
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.make_direct_map()


def _refuse(effort: Effort, kind: str) -> None:
    for name in ("nprobe", "ef_search"):
        if getattr(effort, name) is not None:
            raise BadRequest(f"the index is {kind} and has no {name}; leave it out")


def _check_positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
