"""Take off the wrappers of an index: pre-transforms, which change the query, and ID maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from ragcache_engine.search.stage import Ids, Vectors

ID_MAPS = (faiss.IndexIDMap, faiss.IndexIDMap2)


@dataclass(frozen=True, slots=True, eq=False)
class UnwrappedIndex:
    """An index without its wrappers.

    rows: the query, transformed as `index` needs it. id_maps: the ID maps around it, outermost first.
    """

    index: Any
    rows: Vectors
    id_maps: tuple[Any, ...]

    def outer_ids(self, ids: Ids) -> Ids:
        """Return the caller's ids for ids of `index`; -1 stays -1."""
        for id_map in reversed(self.id_maps):
            names = faiss.rev_swig_ptr(id_map.id_map.data(), id_map.id_map.size())
            ids = np.where(ids < 0, -1, names[np.maximum(ids, 0)])
        return ids


def innermost_index(index: Any) -> Any:
    """Return the index inside all wrappers. Changes nothing."""
    while type(index) is faiss.IndexPreTransform or type(index) in ID_MAPS:
        index = faiss.downcast_index(index.index)
    return index


def find_reason_against_unwrapping(index: Any, params: Any) -> str | None:
    """Return why these parameters cannot be used without the wrappers; None if they can."""
    if params is None:
        return None
    if type(params) is faiss.SearchParametersPreTransform:
        return "Python cannot see the type of parameters inside SearchParametersPreTransform"
    while type(index) is faiss.IndexPreTransform or type(index) in ID_MAPS:
        if type(index) in ID_MAPS and params.sel is not None:
            return "Faiss may translate a selector below an ID map, and Python cannot see whether it did"
        index = faiss.downcast_index(index.index)
    return None


def unwrap(index: Any, rows: Vectors) -> UnwrappedIndex:
    """Take off every pre-transform, after applying it to the rows, and every ID map."""
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
