"""Turns the result of a search into the documents and scores that LangChain gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from langchain_core.documents import Document

from ragcache_integrations.langchain.faiss_store.collection import SearchResult
from ragcache_integrations.langchain.faiss_store.diversity import choose_diverse
from ragcache_integrations.langchain.faiss_store.search_request import SearchRequest, query_matrix


def scored_documents(request: SearchRequest, found: SearchResult) -> list[tuple[Document, float]]:
    """Return copies of the documents that are near enough, with their scores."""
    return [
        (copy_document(document), score)
        for document, score in zip(found.documents, found.scores.tolist(), strict=True)
        if request.is_near_enough(score)
    ]


def diverse_documents(
    request: SearchRequest, embedding: Sequence[float], found: SearchResult
) -> list[Document]:
    """Return copies of up to k documents that are near enough to the query and unlike each other.

    found: a result with its vectors.
    """
    near = [at for at, score in enumerate(found.scores.tolist()) if request.is_near_enough(score)]
    assert found.vectors is not None
    chosen = choose_diverse(
        query_matrix(embedding), found.vectors[near], request.k, request.lambda_mult
    )
    return [copy_document(found.documents[near[at]]) for at in chosen]


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
