"""One search: checks its arguments before the query is embedded, and then runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ragcache_engine import BadRequest, QueryShapeError
from ragcache_integrations.langchain.faiss_store.collection import Collection, SearchResult
from ragcache_integrations.langchain.faiss_store.filters import Filter, compile_filter
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix
from ragcache_integrations.langchain.faiss_store.row_search import Effort
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.staging import OnStage

DEFAULT_K = 4
DEFAULT_FETCH_K = 20

_OPTIONS = ("filter", "score_threshold", "nprobe", "ef_search", "fetch_k")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The checked arguments of one search.

    score_threshold: in the metric's units; None lets every document pass.
    """

    collection: Collection
    k: int
    filter: Filter | None
    score_threshold: float | None
    effort: Effort
    fetch_k: int
    lambda_mult: float

    @classmethod
    def from_arguments(
        cls,
        collection: Collection,
        k: int,
        options: Mapping[str, Any],
        fetch_k: int = DEFAULT_FETCH_K,
        lambda_mult: float = 0.5,
    ) -> Self:
        """Check the arguments of a search.

        Raises InvalidTopK, InvalidFilter; BadRequest for other arguments that cannot be met.
        """
        refuse_unknown_options("a search", options, _OPTIONS)
        check_top_k(k)
        if fetch_k < 1:
            raise BadRequest(f"fetch_k must be at least 1, got {fetch_k}")
        if not 0.0 <= lambda_mult <= 1.0:
            raise BadRequest(f"lambda_mult lies between 0 and 1, got {lambda_mult}")
        effort = Effort(options.get("nprobe"), options.get("ef_search"))
        collection.kind.check_effort(effort)
        filter = options.get("filter")
        if filter is not None:
            compile_filter(filter)
        return cls(
            collection, k, filter, options.get("score_threshold"), effort, fetch_k, lambda_mult
        )

    def run(
        self,
        embedding: Sequence[float],
        k: int,
        with_vectors: bool = False,
        on_stage: OnStage[SearchResult] | None = None,
    ) -> SearchResult:
        """Return the k nearest documents that pass the filter, whatever their scores.

        Raises QueryShapeError.
        """
        query = query_matrix(embedding)
        return self.collection.find_nearest(
            query, k, self.filter, self.effort, with_vectors, on_stage
        )

    def is_near_enough(self, score: float) -> bool:
        """Tell whether a document with this score passes the threshold."""
        if self.score_threshold is None:
            return True
        return self.collection.metric.is_at_least_as_near(score, self.score_threshold)


def query_matrix(embedding: Sequence[float]) -> FloatMatrix:
    """Return a query's vector as a matrix of one row.

    Raises QueryShapeError unless it is one row of finite numbers.
    """
    try:
        query = np.ascontiguousarray(embedding, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise QueryShapeError(f"the query's vector is not a row of numbers ({error})") from error
    if query.ndim != 1 or not np.isfinite(query).all():
        raise QueryShapeError(
            f"the query's vector must be one row of finite numbers, got shape {query.shape}; check "
            f"the embedding model"
        )
    return query.reshape(1, -1)


def refuse_unknown_options(
    where: str, options: Mapping[str, Any], known: Sequence[str] = ()
) -> None:
    """Raise BadRequest for an unknown option, which is most often a misspelt one.

    where: the method that the message names. known: the options that it has.
    """
    for name in options:
        if name not in known:
            choice = f"the options are {', '.join(known)}" if known else "leave it out"
            raise BadRequest(f"{where} knows no option {name!r}; {choice}")
