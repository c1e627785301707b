"""LangChain's indexing changes a store, and the cache follows it."""

from uuid import NAMESPACE_OID, uuid5

import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, VectorParams

from ragcache_engine import InvalidArgument, SyncRecord
from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

TEMPLATE = "Answer from these texts.\n\n{context}\n\nQuestion: {question}\n"


def pages(**texts):
    return [Document(text * 9, metadata={"source": name}) for name, text in texts.items()]


OLD = pages(tides="The moon pulls the sea. ", salt="Rivers carry salt. ", ice="Ice floats. ")
NEW = pages(tides="The moon and the sun pull it. ", salt="Rivers carry salt. ", fog="Fog rises. ")


@pytest.fixture
def indexed():
    """(documents, store) -> LangChain's own indexing, which removes what it is not given."""
    manager = InMemoryRecordManager("pages")
    manager.create_schema()

    def run(documents, store):
        return index(
            documents,
            manager,
            store,
            cleanup="full",
            source_id_key="source",
            key_encoder=lambda page: str(uuid5(NAMESPACE_OID, page.page_content)),
        )

    return run


def cached(engine, page):
    llm = RAGCacheLLM(engine=engine, max_tokens=1)
    before = engine.stats().cached.total
    llm.invoke(TEMPLATE.format(context=page.page_content, question="Why?"))
    return engine.stats().cached.total - before


def test_after_an_indexing_the_cache_has_what_the_store_has(engine, embeddings, indexed):
    store = FaissVectorStore(embeddings)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE)
    indexed(OLD, store)
    assert len(retriever.sync().added) == 3
    counts = indexed(NEW, store)
    synced = retriever.sync()
    # An indexed document's id is made of its text, so that a changed one is another one.
    assert len(synced.added) == counts["num_added"] == 2
    assert len(synced.removed) == counts["num_deleted"] == 2
    assert synced.same == counts["num_skipped"] == 1
    known = {one.id for one in store.all_documents()}
    assert known.isdisjoint(synced.removed)
    assert known.issuperset(synced.added)


def test_a_store_of_others_is_followed_by_its_documents(engine, embeddings, indexed):
    client = QdrantClient(":memory:")
    client.create_collection("pages", VectorParams(size=64, distance=Distance.COSINE))
    store = QdrantVectorStore(client, "pages", embedding=embeddings)
    stock = store.as_retriever(search_kwargs={"k": 2})
    retriever = RAGCacheRetriever.from_retriever(stock, engine=engine, template=TEMPLATE)
    with pytest.raises(InvalidArgument, match="does not tell all documents of its store"):
        retriever.sync()
    indexed(OLD, store)
    assert len(retriever.sync(everything_in(store)).added) == 3
    indexed(NEW, store)
    synced = retriever.sync(everything_in(store))
    assert (len(synced.added), len(synced.removed), synced.same) == (2, 2, 1)
    found = retriever.invoke("fog")
    assert {one.page_content for one in found} <= {one.page_content for one in NEW}
    client.close()


def everything_in(store):
    points, _ = store.client.scroll(store.collection_name, limit=100)
    return store.get_by_ids([one.id for one in points])


def test_a_text_that_is_replaced_under_its_id_is_gone(engine, embeddings):
    store = FaissVectorStore.from_documents(OLD[:1], embeddings, ids=["tides"])
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE)
    retriever.sync()
    assert cached(engine, OLD[0]) >= 32
    store.add_documents(NEW[:1], ids=["tides"])
    assert retriever.sync().changed == ("tides",)
    assert cached(engine, NEW[0]) >= 32
    assert cached(engine, OLD[0]) < 32


def test_a_record_tells_the_next_retriever(engine, embeddings, tmp_path):
    record = SyncRecord(tmp_path / "pages.json")
    store = FaissVectorStore.from_documents(OLD, embeddings, ids=["tides", "salt", "ice"])
    first, second = (
        RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE) for _ in "ab"
    )
    first.sync(record=record)
    store.delete(["ice"])
    assert second.sync(record=record, prepare=False).removed == ("ice",)
    assert first.model_copy(deep=True).sync().added == ("tides", "salt")  # its own record is empty
    assert first.sync().same == 2  # a copy shares it
