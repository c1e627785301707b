"""The kinds of index a store may have: how each is built, and when it is rebuilt.

Faiss cannot remove a vector from every kind of index, so the store never removes one. Instead it tells
each search which rows count, and rebuilds an index with too many deleted rows from the others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import sqrt
from typing import Any, ClassVar, Protocol

import faiss
import numpy as np

from ragcache_engine import ConfigError, InvalidArgument
from ragcache_integrations.langchain.faiss_store.errors import UnsupportedIndex, VectorShapeError
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix, Metric
from ragcache_integrations.langchain.faiss_store.row_search import (
    Effort,
    RowSelection,
    find_graph,
    search_approximately,
)

# At a third, an index of n documents is rebuilt after n / 2 deletions at the earliest.
_MAX_DEAD_SHARE = 1 / 3
# From Faiss's guidelines: with fewer vectors for each list, the centres are poor.
_MIN_VECTORS_PER_LIST = 39


class IndexKind(Protocol):
    """Builds indexes of one kind, and says when one should be rebuilt."""

    name: ClassVar[str]

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        """Return an index of these vectors, in this order; shape (n, dimensions), n >= 1."""

    def is_outgrown(self, built_from: int, live: int) -> bool:
        """Tell whether an index is too small now.

        built_from: how many vectors it was built from. live: how many documents there are now.
        """

    def check_effort(self, effort: Effort) -> None:
        """Raise InvalidArgument for an effort that this kind of index does not have."""


@dataclass(frozen=True, slots=True)
class FlatIndex:
    """Compares the query with every vector. Exact, and fast up to some ten thousand vectors."""

    name: ClassVar[str] = "flat"

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        index = faiss.index_factory(vectors.shape[1], "Flat", metric.faiss_metric)
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return False

    def check_effort(self, effort: Effort) -> None:
        _refuse_effort(effort, self.name)


@dataclass(frozen=True, slots=True)
class IVFIndex:
    """Vectors in lists around centres; a search looks into the `nprobe` lists nearest to the query.

    It trains itself. With fewer than `train_from` vectors it is a flat index, which is exact and
    fast at that size. It is trained again each time the number of vectors has become four times as
    large.

    nlist: number of lists; by default 4 times the square root of the number of vectors, at each
      training.
    nprobe: how many lists a search looks into, unless the search says otherwise.
    train_from: how many vectors the first training needs; by default 39 for each list, or 5,000.
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
        return self.train_from or (self.nlist * _MIN_VECTORS_PER_LIST if self.nlist else 5_000)

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        count, dimensions = vectors.shape
        if count < self.trained_from:
            return FlatIndex().build(vectors, metric)
        nlist = self.nlist or min(int(4 * sqrt(count)), max(1, count // _MIN_VECTORS_PER_LIST))
        index = faiss.index_factory(dimensions, f"IVF{nlist},Flat", metric.faiss_metric)
        index.nprobe = self.nprobe
        index.cp.spherical = metric is Metric.COSINE
        index.cp.min_points_per_centroid = 1  # no warning: the user chose the number of lists
        index.train(vectors)
        index.make_direct_map()  # so that rows can be read back
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return live >= self.trained_from and (
            built_from < self.trained_from or live >= 4 * built_from
        )

    def check_effort(self, effort: Effort) -> None:
        _refuse_effort(Effort(ef_search=effort.ef_search), self.name)


@dataclass(frozen=True, slots=True)
class HNSWIndex:
    """A graph of neighbours that a search walks along. Fast at any size, but adding is slow.

    m: to how many neighbours a vector is linked.
    ef_construction, ef_search: how many candidates are kept while the graph is built, and searched.
    """

    m: int = 32
    ef_construction: int = 200
    ef_search: int = 64

    name: ClassVar[str] = "hnsw"

    def __post_init__(self) -> None:
        _check_positive(self, "m", "ef_construction", "ef_search")
        if self.m < 2:
            raise ConfigError("m must be at least 2: a vector with one neighbour leads nowhere")

    def build(self, vectors: FloatMatrix, metric: Metric) -> faiss.Index:
        index = faiss.IndexHNSWFlat(vectors.shape[1], self.m, metric.faiss_metric)
        index.hnsw.efConstruction = self.ef_construction
        index.hnsw.efSearch = self.ef_search
        index.add(vectors)
        return index

    def is_outgrown(self, built_from: int, live: int) -> bool:
        return False

    def check_effort(self, effort: Effort) -> None:
        _refuse_effort(Effort(nprobe=effort.nprobe), self.name)


class GivenIndex:
    """An index of the user's own, trained and empty. The store fills copies of it.

    Raises UnsupportedIndex for an index that is not trained or not empty, and for one that cannot
    search among chosen rows or read a row back.
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
        self._check_capabilities()

    @classmethod
    def from_filled(cls, filled: faiss.Index) -> GivenIndex:
        """Return the kind of an index that already holds vectors."""
        empty = faiss.clone_index(filled)
        empty.reset()
        return cls(empty)

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
        probes = faiss.try_extract_index_ivf(self._empty) is not None
        walks = find_graph(self._empty) is not None
        _refuse_effort(
            Effort(None if probes else effort.nprobe, None if walks else effort.ef_search),
            f"given {type(self._empty).__name__}",
        )

    def _check_capabilities(self) -> None:
        """Try everything the store will need, with one vector."""
        trial = faiss.clone_index(self._empty)
        vector = np.ones((1, trial.d), dtype=np.float32)
        try:
            trial.add(vector)
            search_approximately(trial, vector, 1, RowSelection.from_rows([0], 1), Effort())
            trial.reconstruct_batch(np.zeros(1, dtype=np.int64))
        except RuntimeError as error:
            raise UnsupportedIndex(
                f"{type(trial).__name__} cannot be searched among chosen rows or read back, which "
                f"filters and deletion need; flat, IVF, HNSW and scalar-quantizer indexes can, "
                f"without IDMap around them"
            ) from error


def parse_index_kind(index: object) -> IndexKind:
    """Return the kind of index for the store's argument `index`. Raises ConfigError."""
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


def is_rebuild_due(kind: IndexKind, built_from: int, live: int, rows: int) -> bool:
    """Tell whether an index should be rebuilt: too many rows are deleted, or it is too small.

    rows: rows in the index. live: rows that have a document. built_from: vectors it was built from.
    """
    return (rows - live) > _MAX_DEAD_SHARE * rows or kind.is_outgrown(built_from, live)


def kind_to_dict(kind: IndexKind) -> dict[str, Any]:
    """Return the kind as JSON for `kind_from_dict`. A given index is described by the index itself."""
    if isinstance(kind, GivenIndex):
        return {"kind": kind.name}
    return {"kind": kind.name, **{f.name: getattr(kind, f.name) for f in fields(kind)}}  # type: ignore[arg-type]


def kind_from_dict(settings: dict[str, Any], index: faiss.Index | None) -> IndexKind:
    """Rebuild the kind from what `kind_to_dict` wrote. index: needed for a given index.

    Raises KeyError, TypeError or ConfigError for anything else.
    """
    settings = dict(settings)
    name = settings.pop("kind")
    if name == GivenIndex.name:
        return GivenIndex.from_filled(index)
    kind: IndexKind = _KINDS[name](**settings)
    return kind


_KINDS: dict[str, Any] = {kind.name: kind for kind in (FlatIndex, IVFIndex, HNSWIndex)}


def _make_readable(index: faiss.Index) -> None:
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        ivf.make_direct_map()


def _refuse_effort(effort: Effort, kind: str) -> None:
    for name in ("nprobe", "ef_search"):
        if getattr(effort, name) is not None:
            raise InvalidArgument(f"the index is {kind} and has no {name}; leave it out")


def _check_positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
