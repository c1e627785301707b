"""A search in one go, by Faiss itself."""

from __future__ import annotations

from typing import Any

from ragcache_engine.search.stage import SearchStage, Vectors


def search_in_one_stage(index: Any, rows: Vectors, k: int, params: Any) -> SearchStage:
    """Return the result of `index.search` as a final stage."""
    distances, ids = index.search(rows, k, params=params)
    return SearchStage(ids, distances, 1.0, final=True)
