"""The staged search: check the arguments, find the family of the index, yield the stages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import faiss

from ragcache_engine.search import flat, hnsw, ivf, wrapped
from ragcache_engine.search.one_stage import search_in_one_stage
from ragcache_engine.search.partial_search import PartialSearch, search_in_parts
from ragcache_engine.search.query import Query, check_query
from ragcache_engine.search.stage import SearchStage

log = logging.getLogger(__name__)


def stages(
    index: Any,
    query: Any,
    k: int,
    count: int = 8,
    *,
    params: Any = None,
    slice_s: float | None = None,
) -> Iterator[SearchStage]:
    """Yield ever better guesses at the k nearest vectors. The last one is `index.search`'s own answer.

    index: any faiss.Index over float vectors. It is not changed.
    query: shape (dim,), or (n, dim) for a batch. It is converted to contiguous float32 if need be.
    count: the most stages to yield.
    params: faiss.SearchParameters for this search alone; None: the index's own settings (nprobe,
        efSearch). They are not changed.
    slice_s: the least seconds of searching between two stages. A stage that would come sooner is merged
        into the next one, so a small index yields one stage. None: no limit.

    Only the last stage is `final`. Its ids and distances equal those of
    `index.search(query, k, params=params)` bit for bit. The IVF family, HNSW and flat indexes, also
    inside IndexPreTransform, IndexIDMap and IndexIDMap2, yield provisional stages where this is exact
    and cheap (docs/search.md). Any other search yields one final stage.

    Do not add to the index, train it or free it while you iterate over its stages. Other searches of
    the same index, with any settings, may run at the same time.

    Raises, before any work: InvalidTopK if k < 1, ValueError if count < 1 or slice_s < 0,
    QueryShapeError if the query has the wrong size, is not numeric or not finite, EmptyIndex,
    UnsupportedStore if `index` is not a faiss.Index. Raises RuntimeError during the iteration if Faiss
    refuses `params`.
    Source: RAGCache, section 5.3, pipelined vector search.

        >>> import faiss, numpy as np
        >>> vectors = np.random.default_rng(1).random((4000, 16), dtype=np.float32)
        >>> index = faiss.index_factory(16, "IVF64,Flat")
        >>> index.train(vectors)
        >>> index.add(vectors)
        >>> index.nprobe = 64
        >>> seen = list(stages(index, vectors[7], k=3, count=4))
        >>> [stage.final for stage in seen]
        [False, False, False, True]
        >>> distances, ids = index.search(vectors[7:8], 3)
        >>> bool((seen[-1].ids == ids[0]).all()), int(seen[-1].ids[0])
        (True, 7)
    """
    return run_search(check_query(index, query, k, count, params, slice_s))


def run_search(query: Query) -> Iterator[SearchStage]:
    """Yield the stages of a checked query, with 1-d arrays for a single vector."""
    for stage in search_rows(query):
        if query.is_single:
            yield SearchStage(stage.ids[0], stage.distances[0], stage.fraction_done, stage.final)
        else:
            yield stage


def search_rows(query: Query) -> Iterator[SearchStage]:
    """Yield the stages of a checked query, with ids and distances of shape (n, k)."""
    index, rows, k, params = query.index, query.rows, query.k, query.params
    core = wrapped.innermost_index(index)
    why = find_reason_for_one_stage(query, core)
    if why is not None:
        log.debug("searching in one stage: %s", why)
        yield search_in_one_stage(index, rows, k, params)
    elif type(core) in hnsw.KINDS:
        yield from hnsw.search_with_previews(
            index, core, rows, k, params, query.count, query.slice_s
        )
    else:
        inner = wrapped.unwrap(index, rows)
        for stage in search_in_parts(make_partial_search(inner, query), query.count, query.slice_s):
            yield replace(stage, ids=inner.outer_ids(stage.ids)) if inner.id_maps else stage


def find_reason_for_one_stage(query: Query, core: Any) -> str | None:
    """Return why the search has only one stage; None if it can have more. core: the innermost index."""
    if query.count == 1 or not len(query.rows):
        return "one stage was asked for"
    if type(core) in hnsw.KINDS:
        return hnsw.find_reason_against_previews(query.params)
    if type(core) not in ivf.KINDS + flat.KINDS:
        return f"there is no staged search of a {type(core).__name__}"
    if reason := wrapped.find_reason_against_unwrapping(query.index, query.params):
        return reason
    if type(core) in ivf.KINDS:
        return ivf.find_reason_against_slices(core, len(query.rows), query.params)
    return flat.find_reason_against_ranges(core, len(query.rows), query.k, query.params)


def make_partial_search(inner: wrapped.UnwrappedIndex, query: Query) -> PartialSearch:
    """Return the search of an IVF or flat index, to be run part by part."""
    if type(inner.index) in ivf.KINDS:
        return ivf.PartialIVFSearch(inner.index, inner.rows, query.k, query.params)
    assert isinstance(inner.index, faiss.IndexFlat)
    return flat.PartialFlatSearch(inner.index, inner.rows, query.k)
