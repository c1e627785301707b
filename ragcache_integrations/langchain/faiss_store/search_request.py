"""One search: checks its arguments before the query is embedded, runs it, and makes the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from langchain_core.documents import Document

from ragcache_engine import BadRequest, QueryShapeError
from ragcache_integrations.langchain.faiss_store.collection import Collection, SearchResult
from ragcache_integrations.langchain.faiss_store.diversity import choose_diverse
from ragcache_integrations.langchain.faiss_store.filters import Filter, compile_filter
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix
from ragcache_integrations.langchain.faiss_store.row_search import Effort
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.staging import OnStage, translate_stages

Found = TypeVar("Found")

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

    def find_scored(
        self,
        embedding: Sequence[float],
        on_stage: OnStage[list[tuple[Document, float]]] | None = None,
    ) -> list[tuple[Document, float]]:
        """Return copies of the k nearest documents that are near enough, with their scores.

        Raises QueryShapeError.
        """
        return self._find(query_matrix(embedding), self.k, self._select_scored, on_stage)

    def find_diverse(
        self,
        embedding: Sequence[float],
        on_stage: OnStage[list[Document]] | None = None,
    ) -> list[Document]:
        """Return copies of up to k documents that are near enough to the query and unlike each other.

        Raises QueryShapeError.
        """
        query, fetched = query_matrix(embedding), max(self.k, self.fetch_k)
        select = partial(self._select_diverse, query)
        return self._find(query, fetched, select, on_stage, with_vectors=True)

    def _find(
        self,
        query: FloatMatrix,
        k: int,
        select: Callable[[SearchResult], Found],
        on_stage: OnStage[Found] | None,
        with_vectors: bool = False,
    ) -> Found:
        """Search for the k nearest documents that pass the filter. Return what `select` makes of them."""
        on_result = translate_stages(select, on_stage) if on_stage is not None else None
        found = self.collection.find_nearest(
            query, k, self.filter, self.effort, with_vectors, on_result
        )
        return select(found)

    def _select_scored(self, found: SearchResult) -> list[tuple[Document, float]]:
        return [
            (copy_document(document), score)
            for document, score in zip(found.documents, found.scores.tolist(), strict=True)
            if self._is_near_enough(score)
        ]

    def _select_diverse(self, query: FloatMatrix, found: SearchResult) -> list[Document]:
        near = [at for at, score in enumerate(found.scores.tolist()) if self._is_near_enough(score)]
        assert found.vectors is not None
        chosen = choose_diverse(query, found.vectors[near], self.k, self.lambda_mult)
        return [copy_document(found.documents[near[at]]) for at in chosen]

    def _is_near_enough(self, score: float) -> bool:
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
    where: str, options: Mapping[str, Any], known: Sequence[str] = (), advice: str = ""
) -> None:
    """Raise BadRequest for an unknown option, which is most often a misspelt one.

    where: the method that the message names. known: the options that it has. advice: what to do
    instead.
    """
    for name in options:
        if name not in known:
            choice = f"the options are {', '.join(known)}" if known else "leave it out"
            more = f". {advice}" if advice else ""
            raise BadRequest(f"{where} knows no option {name!r}; {choice}{more}")


def relevant_documents(
    relevance: Callable[[float], float],
    min_relevance: float | None,
    scored: list[tuple[Document, float]],
) -> list[Document]:
    """Return the documents of at least this relevance; all of them if it is None.

    relevance: turns a score into a relevance.
    """
    return [
        document
        for document, score in scored
        if min_relevance is None or relevance(score) >= min_relevance
    ]


def without_scores(scored: list[tuple[Document, float]]) -> list[Document]:
    """Return the documents alone."""
    return [document for document, _ in scored]


def copy_document(document: Document) -> Document:
    """Return a copy, which the caller may change without changing the store."""
    return Document(
        id=document.id,
        page_content=document.page_content,
        metadata=deepcopy(document.metadata),
    )
