"""A framework's own search, made in stages: told what it would return if it ended now, then what it does.

The framework searches a stand-in for its Faiss index. The stand-in searches the real index in stages,
whose last is the real index's own answer, and runs the framework's search again on each stage before: on
another stand-in that answers with that stage. So filters, thresholds and whatever else the framework does
with what Faiss found hold for every stage, and what is returned is what the framework returns by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from ragcache_engine.search import SearchStage

logger = logging.getLogger(__name__)

SLICE_S = 0.002
"""Seconds of searching between stages, at least: what a prefill gains by starting less early is less."""

Result = TypeVar("Result")
RawResult = TypeVar("RawResult")
Item = TypeVar("Item")

OnStage: TypeAlias = Callable[[Result, float], None]
"""Told what a search would return if it ended now, and the share of it that is behind."""


def search_in_stages(
    index: Any, query: Any, k: int, on_stage: Callable[[SearchStage], None], params: Any = None
) -> tuple[Any, Any]:
    """`index.search(query, k, params=params)`: distances and ids, shape (n, k) each.

    query: float32, shape (n, dimensions). on_stage: told of stages in which k were found. What it raises
    ends the search.
    """
    # Here, since it loads Faiss, which an integration does without until it searches.
    from ragcache_engine.search import stages

    try:
        drawn = stages(index, query, k, params=params, slice_s=SLICE_S)
        stage = next(drawn)
    except Exception as error:
        # Faiss, or what stands for it, may well have an answer: an empty one to NaN, say.
        return _search_at_once(error, index, query, k, params)
    while not stage.final:
        if (stage.ids >= 0).all():
            on_stage(stage)
        try:
            stage = next(drawn)
        except Exception as error:
            return _search_at_once(error, index, query, k, params)
    # Stages share their arrays and protect them; those of a search are the caller's own.
    return stage.distances.copy(), stage.ids.copy()


def _search_at_once(
    error: Exception, index: Any, query: Any, k: int, params: Any
) -> tuple[Any, Any]:
    logger.debug("searched in one go: %r", error)
    options = {} if params is None else {"params": params}
    distances, ids = index.search(query, k, **options)
    return distances, ids


class _IndexProxy:
    """Everything but `search` is the index's own."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        if name == "_index":  # while it is being copied
            raise AttributeError(name)
        return getattr(self._index, name)


class StagedIndex(_IndexProxy):
    """Searches in stages. on_stage: see `search_in_stages`."""

    def __init__(self, index: Any, on_stage: Callable[[SearchStage], None]) -> None:
        super().__init__(index)
        self._on_stage = on_stage

    def search(self, query: Any, k: int, *, params: Any = None, **options: Any) -> Any:
        if options:
            return self._index.search(query, k, params=params, **options)
        return search_in_stages(self._index, query, k, self._on_stage, params)


class FixedResultIndex(_IndexProxy):
    """Answers its only question with one stage."""

    def __init__(self, index: Any, stage: SearchStage) -> None:
        super().__init__(index)
        self._stage = stage

    def search(self, query: Any, k: int, *, params: Any = None, **options: Any) -> Any:
        asked, known = (len(query), k), self._stage.ids.shape
        if asked != known:
            raise LookupError(f"the stage answers a search of shape {known}, not {asked}")
        return self._stage.distances.copy(), self._stage.ids.copy()


def preview_each_stage(
    index: Any,
    search: Callable[[Any], Result],
    on_stage: OnStage[Result],
    preview: Callable[[Any], Result] | None = None,
) -> Result:
    """What `search(index)` returns, told in stages on the way.

    search: the framework's own, of the index or a stand-in for it. preview: the same without traces, for
    what is not the answer. A stage of which it can make nothing is left out.
    """
    made_of: SearchStage | None = None
    made: Result

    def show(stage: SearchStage) -> None:
        nonlocal made_of, made
        try:
            if made_of is None or not _has_same_result(made_of, stage):
                made = (preview or search)(FixedResultIndex(index, stage))
                made_of = stage
            on_stage(made, stage.fraction_done)
        except Exception as error:  # a guess; the answer will say what is wrong, if anything is
            logger.debug("a provisional result was left out: %r", error)

    return search(StagedIndex(index, show))


def _has_same_result(one: SearchStage, other: SearchStage) -> bool:
    return bool((one.ids == other.ids).all() and (one.distances == other.distances).all())


def translate_stages(
    translate: Callable[[RawResult], Result], on_stage: OnStage[Result] | None
) -> OnStage[RawResult] | None:
    """To be told of what is translated for `on_stage`; None if nobody is to be told."""
    if on_stage is None:
        return None

    def tell(raw_result: RawResult, fraction_done: float) -> None:
        on_stage(translate(raw_result), fraction_done)

    return tell
