"""LlamaIndex's own means change an index, and the cache follows it."""

import faiss
import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.vector_stores.faiss import FaissMapVectorStore
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient

from ragcache_engine import InvalidArgument
from ragcache_integrations.llamaindex import RAGCacheRetriever

TEMPLATE = "Answer from these texts.\n\n{context_str}\n\nQuestion: {query_str}\n"


def pages(**texts):
    return [Document(id_=name, text=text * 9) for name, text in texts.items()]


OLD = pages(tides="The moon pulls the sea. ", salt="Rivers carry salt. ", ice="Ice floats. ")
NEW = pages(tides="The moon and the sun pull it. ", salt="Rivers carry salt. ", fog="Fog rises. ")


@pytest.fixture
def changing_index(make_index):
    store = FaissMapVectorStore(faiss_index=faiss.IndexIDMap2(faiss.IndexFlatL2(64)))
    return make_index(store, [], store_nodes_override=True)


def test_after_a_refresh_the_cache_has_what_the_index_has(engine, changing_index):
    retriever = RAGCacheRetriever.from_index(changing_index, engine=engine, template=TEMPLATE)
    changing_index.refresh_ref_docs(OLD)
    assert len(retriever.sync().added) == 3
    outdated = set(changing_index.docstore.get_ref_doc_info("tides").node_ids)
    changing_index.refresh_ref_docs(NEW)
    changing_index.delete_ref_doc("ice", delete_from_docstore=True)
    synced = retriever.sync()
    assert (len(synced.added), len(synced.removed), synced.same) == (2, 2, 1)
    assert outdated <= set(synced.removed)
    assert synced.warmed.sets == 2


def test_after_an_ingestion_the_cache_has_what_the_store_has(engine, embeddings):
    client = QdrantClient(":memory:")
    store = QdrantVectorStore("pages", client=client)
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), embeddings],
        docstore=SimpleDocumentStore(),
        vector_store=store,
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )
    index = VectorStoreIndex.from_vector_store(store, embed_model=embeddings)
    stock = index.as_retriever(similarity_top_k=2)
    retriever = RAGCacheRetriever.from_retriever(stock, engine=engine, template=TEMPLATE)
    with pytest.raises(InvalidArgument, match="does not tell all nodes of its store"):
        retriever.sync()
    pipeline.run(documents=OLD)
    before = store.get_nodes()
    assert len(retriever.sync(before).added) == 3
    pipeline.run(documents=NEW)
    synced = retriever.sync(store.get_nodes())
    assert (len(synced.added), len(synced.removed), synced.same) == (2, 2, 1)
    gone = {one.node_id for one in before if one.ref_doc_id in ("tides", "ice")}
    assert gone == set(synced.removed)
    assert {one.node.node_id for one in retriever.retrieve("fog")}.isdisjoint(gone)
    client.close()
