"""Makes our retriever in place of a stock one."""

from __future__ import annotations

from typing import Any

from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from ragcache_engine import RAGCacheEngine, UnsupportedStore
from ragcache_integrations.langchain.engine_retriever import EngineRetriever
from ragcache_integrations.langchain.reporting_retriever import ReportingRetriever
from ragcache_integrations.langchain.retriever import RAGCacheRetriever
from ragcache_integrations.langchain.store import check_supported

_OF_STOCK = ("search_type", "search_kwargs", "tags", "metadata", "name")


def make_our_retriever(retriever: BaseRetriever, engine: RAGCacheEngine) -> EngineRetriever:
    """Return a retriever that finds the same documents and tells the engine of them.

    It searches in stages if the retriever is a Faiss store's own.
    """
    # Another class, derived from this one, may search in another way.
    if type(retriever) is not VectorStoreRetriever or not _is_supported(retriever.vectorstore):
        return ReportingRetriever(retriever=retriever, engine=engine)
    kept: dict[str, Any] = {name: getattr(retriever, name) for name in _OF_STOCK}
    return RAGCacheRetriever(vectorstore=retriever.vectorstore, engine=engine, **kept)


def _is_supported(store: VectorStore) -> bool:
    try:
        check_supported(store)
    except UnsupportedStore:
        return False
    return True


def name_of_ours(retriever: EngineRetriever) -> str:
    """Return how a user would have made this retriever, for the report."""
    if isinstance(retriever, RAGCacheRetriever):
        return "RAGCacheRetriever.from_vectorstore"
    return "RAGCacheRetriever.from_retriever"


def describe_retriever(retriever: BaseRetriever) -> str:
    """Return the class of a retriever, and that of its store, for the report."""
    kind = type(retriever).__name__
    store = getattr(retriever, "vectorstore", None)
    return kind if store is None else f"{kind} over {type(store).__name__}"
