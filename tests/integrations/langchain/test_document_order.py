"""LangChain's retriever returns documents in the order that the engine is configured for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from ragcache_engine import RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend

pytest.importorskip("faiss")

from ragcache_integrations.langchain import FaissVectorStore, RAGCacheRetriever


class Lengths(Embeddings):
    """Embeds a text as its length, in one dimension."""

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [len(text) / 100, 1.0]


DOCUMENTS = [
    Document(id=name, page_content=f"The long report of {name}. " * repeats)
    for name, repeats in [("c", 4), ("a", 5), ("b", 6)]
]


def ids_found(engine: RAGCacheEngine) -> list[str | None]:
    store = FaissVectorStore.from_documents(DOCUMENTS, Lengths(), metric="l2")
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3)
    return [document.id for document in retriever.invoke("?")]


@pytest.mark.parametrize(
    ("order", "expected"), [("retrieved", ["c", "a", "b"]), ("canonical", ["a", "b", "c"])]
)
def test_documents_come_in_the_engines_order(
    engine_on: Callable[..., RAGCacheEngine], order: str, expected: list[str]
):
    assert ids_found(engine_on(MemoryBackend(), document_order=order)) == expected


def test_cached_begins_as_an_earlier_prompt_did(engine_on: Callable[..., RAGCacheEngine]):
    engine = engine_on(MemoryBackend(), document_order="cached")
    store = FaissVectorStore.from_documents(DOCUMENTS, Lengths(), metric="l2")
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    longest = retriever.invoke("x" * 120)
    assert longest[0].id == "a"
    engine.generate("\n\n".join(document.page_content for document in longest))
    again = retriever.invoke("x" * 150)
    assert {document.id for document in again} == {"a", "b"}
    assert [document.id for document in again] == [document.id for document in longest]
