import asyncio

import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_engine import (
    IndexOutOfStep,
    InvalidTopK,
    QueryShapeError,
    RAGCacheError,
    UnknownDocument,
    UnsupportedStore,
)
from ragcache_integrations.langchain import RAGCacheRetriever


@pytest.fixture
def ask(store, engine):
    """Ask the store synchronously and asynchronously, and return the error that both raise."""
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=6)

    def ask(**options):
        errors = []
        for asked in (
            lambda: retriever.invoke("Why is the sky blue?", **options),
            lambda: asyncio.run(retriever.ainvoke("Why is the sky blue?", **options)),
        ):
            with pytest.raises(RAGCacheError) as caught:
                asked()
            errors.append(caught.value)
        assert type(errors[0]) is type(errors[1])
        return errors[0]

    return ask


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_document_is_refused_at_construction(store, engine, k):
    with pytest.raises(InvalidTopK, match="at least one document"):
        RAGCacheRetriever.from_vectorstore(store, engine=engine, k=k)


def test_fewer_than_one_document_is_refused_at_the_call_too(ask, embeddings):
    assert isinstance(ask(k=0), InvalidTopK)
    assert embeddings.queries == 0


def test_a_store_that_is_not_faiss_is_refused_at_construction(engine, embeddings):
    for stranger in (InMemoryVectorStore(embeddings), object(), None):
        with pytest.raises(UnsupportedStore, match="FAISS vector store, got"):
            RAGCacheRetriever.from_vectorstore(stranger, engine=engine)


def test_a_search_type_there_is_not_is_refused_at_construction(store, engine):
    with pytest.raises(ValueError, match="search_type of nearest not allowed"):
        RAGCacheRetriever.from_vectorstore(store, engine=engine, search_type="nearest")


def test_an_empty_store_finds_nothing_and_embeds_nothing(store, engine, embeddings):
    store.delete(list(store.index_to_docstore_id.values()))
    assert store.as_retriever().invoke("Why is the sky blue?") == []
    asked = embeddings.queries
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    assert retriever.invoke("Why is the sky blue?") == []
    assert asyncio.run(retriever.ainvoke("Why is the sky blue?")) == []
    assert embeddings.queries == asked


def test_a_vector_without_a_document_is_passed_over(store, engine):
    store.index_to_docstore_id.pop(0)
    for search_type in ("similarity", "mmr"):
        retriever = RAGCacheRetriever.from_vectorstore(
            store, engine=engine, k=5, search_type=search_type
        )
        found = {document.id for document in retriever.invoke("Why is the sky blue?")}
        assert found == {"tides", "bread", "glass", "bees", "steel"}


def test_a_query_is_answered_while_documents_are_added(store, engine, monkeypatch):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    expected, found = retriever.invoke("Why is the sky blue?"), []
    docstore_add = InMemoryDocstore.add

    def ask_and_add(docstore, documents):  # the store has added the vectors by now
        found.extend(retriever.invoke("Why is the sky blue?"))
        docstore_add(docstore, documents)

    monkeypatch.setattr(InMemoryDocstore, "add", ask_and_add)
    store.add_texts(["Why is the sky blue?"])
    assert found == expected
    assert retriever.invoke("Why is the sky blue?")[0].page_content == "Why is the sky blue?"


def test_an_index_of_which_no_vector_has_a_document_is_out_of_step(ask, store):
    store.index_to_docstore_id.clear()
    assert isinstance(ask(), IndexOutOfStep)


def test_a_store_without_its_docstore_is_out_of_step(ask, store):
    store.docstore = None
    assert isinstance(ask(), IndexOutOfStep)


def test_a_query_vector_of_another_size_is_named(ask, embeddings):
    embeddings.size = 32
    error = ask()
    assert isinstance(error, QueryShapeError)
    assert "32 dimensions, the index 64" in str(error)


def test_a_document_the_docstore_lacks_is_named(ask, store):
    store.docstore.delete(["sky"])
    error = ask()
    assert isinstance(error, UnknownDocument)
    assert "'sky'" in str(error)


def test_a_filter_that_fails_is_not_taken_for_a_missing_document(store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=engine, filter={"$near": "the truth"}
    )
    with pytest.raises(ValueError, match="unsupported operator"):
        retriever.invoke("Why is the sky blue?")


def test_a_failed_search_leaves_nothing_for_the_engine_to_recognise(ask, store, engine, corpus):
    store.docstore.delete(["sky"])
    ask()
    answer = engine.generate(f"{corpus['tides']}\nWhy is the sky blue?")
    assert answer.usage.document_ids == ()
