"""Run a framework's own search in stages, and show what it would return at each stage.

The framework gets a proxy in place of its Faiss index. The proxy searches the real index in
stages; the last stage is the real index's own answer. For each earlier stage, the framework's
search is run again over another proxy, which answers with what that stage found. So filters,
thresholds and everything else that the framework does with Faiss's results hold for every stage,
and the final result is what the framework returns by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ragcache_engine.search import SearchStage

logger = logging.getLogger(__name__)

SLICE_S = 0.002
"""Shortest time between two stages, in seconds. A prefill that starts earlier gains less than this."""

Result = TypeVar("Result")
RawResult = TypeVar("RawResult")
Item = TypeVar("Item")

OnStage: TypeAlias = Callable[[Result, float], None]
"""Called with what a search would return if it ended now, and with the share that is done, 0 to 1."""


def search_in_stages(
    index: Any, query: Any, k: int, on_stage: Callable[[SearchStage], None], params: Any = None
) -> tuple[Any, Any]:
    """Search as `index.search(query, k, params=params)` does, and report each stage before the last.

    Returns distances and ids, each of shape (n, k).
    query: float32, shape (n, dimensions).
    on_stage: called with each stage that has found all k. An error that it raises ends the search.
    If the search cannot be staged, or a stage fails, the index is searched at once.
    """
    # Imported here because it loads Faiss, which nothing needs before the first search.
    from ragcache_engine.search import stages

    try:
        drawn = stages(index, query, k, params=params, slice_s=SLICE_S)
        stage = next(drawn)
    except Exception as error:
        # The index itself may still have an answer, such as an empty one to NaN.
        return _search_at_once(error, index, query, k, params)
    while not stage.final:
        if (stage.ids >= 0).all():
            on_stage(stage)
        try:
            stage = next(drawn)
        except Exception as error:
            return _search_at_once(error, index, query, k, params)
    # Stages share read-only arrays; the caller of a search may write to its own.
    return stage.distances.copy(), stage.ids.copy()


def _search_at_once(
    error: Exception, index: Any, query: Any, k: int, params: Any
) -> tuple[Any, Any]:
    logger.debug("searched without stages: %r", error)
    options = {} if params is None else {"params": params}
    distances, ids = index.search(query, k, **options)
    return distances, ids


class IndexProxy:
    """Passes everything but `search` on to the index."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name == "_index":  # not set yet while Python makes a copy
            raise AttributeError(name)
        return getattr(self._index, name)


class StagedIndex(IndexProxy):
    """Searches the index in stages. on_stage: see `search_in_stages`."""

    def __init__(self, index: Any, on_stage: Callable[[SearchStage], None]) -> None:
        super().__init__(index)
        self._on_stage = on_stage

    def search(self, query: Any, k: int, *, params: Any = None, **options: Any) -> Any:
        if options:
            return self._index.search(query, k, params=params, **options)
        return search_in_stages(self._index, query, k, self._on_stage, params)


class FixedResultIndex(IndexProxy):
    """Answers a search with what one stage found.

    Raises LookupError for a search with another number of queries or another k than the stage's.
    """

    def __init__(self, index: Any, stage: SearchStage) -> None:
        super().__init__(index)
        self._stage = stage

    def search(self, query: Any, k: int, *, params: Any = None, **options: Any) -> Any:
        wanted, available = (len(query), k), self._stage.ids.shape
        if wanted != available:
            raise LookupError(f"the stage answers a search of shape {available}, not {wanted}")
        return self._stage.distances.copy(), self._stage.ids.copy()


def preview_each_stage(
    index: Any,
    search: Callable[[Any], Result],
    on_stage: OnStage[Result],
    preview: Callable[[Any], Result] | None = None,
) -> Result:
    """Return what `search(index)` returns, and report what each stage before would return.

    search: the framework's own search, of the index or of a proxy for it.
    on_stage: called with the framework's result for a stage. This function logs and ignores its errors.
    preview: the same search without callbacks and traces, for stages that are not the answer; by
      default `search`. If it fails, the stage is skipped.
    """
    previewed_stage: SearchStage | None = None
    previewed: Result

    def show(stage: SearchStage) -> None:
        nonlocal previewed_stage, previewed
        try:
            if previewed_stage is None or not _has_same_result(previewed_stage, stage):
                previewed = (preview or search)(FixedResultIndex(index, stage))
                previewed_stage = stage
            on_stage(previewed, stage.fraction_done)
        except Exception as error:  # if something is really wrong, the final search raises it
            logger.debug("a provisional result was skipped: %r", error)

    return search(StagedIndex(index, show))


def _has_same_result(one: SearchStage, other: SearchStage) -> bool:
    return bool((one.ids == other.ids).all() and (one.distances == other.distances).all())


def translate_stages(
    translate: Callable[[RawResult], Result], on_stage: OnStage[Result]
) -> OnStage[RawResult]:
    """Return a listener that translates each stage for `on_stage`."""

    def tell(raw_result: RawResult, fraction_done: float) -> None:
        on_stage(translate(raw_result), fraction_done)

    return tell
