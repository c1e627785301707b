"""Indexes around an index: what goes in is transformed, what comes out is renamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from ragcache_engine.search.stage import Ids, Vectors

ID_MAPS = (faiss.IndexIDMap, faiss.IndexIDMap2)


@dataclass(frozen=True, slots=True, eq=False)
class UnwrappedIndex:
    """What is left when the wrappers are off.

    rows: the query as `index` wants it. id_maps: the ID maps taken off, outermost first.
    """

    index: Any
    rows: Vectors
    id_maps: tuple[Any, ...]

    def outer_ids(self, ids: Ids) -> Ids:
        """The caller's ids for those of the core; -1 stays -1."""
        for id_map in reversed(self.id_maps):
            names = faiss.rev_swig_ptr(id_map.id_map.data(), id_map.id_map.size())
            ids = np.where(ids < 0, -1, names[np.maximum(ids, 0)])
        return ids


def innermost_index(index: Any) -> Any:
    """The innermost index, untouched."""
    while type(index) is faiss.IndexPreTransform or type(index) in ID_MAPS:
        index = faiss.downcast_index(index.index)
    return index


def find_reason_against_unwrapping(index: Any, params: Any) -> str | None:
    """What speaks against taking the wrappers off, or None."""
    if params is None:
        return None
    if type(params) is faiss.SearchParametersPreTransform:
        return "the inner parameters have lost their type on the way through Python"
    while type(index) is faiss.IndexPreTransform or type(index) in ID_MAPS:
        if type(index) in ID_MAPS and params.sel is not None:
            return "Faiss translates a selector, unless it is translated, which Python cannot see"
        index = faiss.downcast_index(index.index)
    return None


def unwrap(index: Any, rows: Vectors) -> UnwrappedIndex:
    """Takes off every pre-transform (applied to the rows) and ID map."""
    id_maps = []
    while type(index) is faiss.IndexPreTransform or type(index) in ID_MAPS:
        if type(index) in ID_MAPS:
            id_maps.append(index)
        else:
            for step in range(index.chain.size()):
                transform = faiss.downcast_VectorTransform(index.chain.at(step))
                rows = transform.apply(rows)
        index = faiss.downcast_index(index.index)
    return UnwrappedIndex(index, rows, tuple(id_maps))
