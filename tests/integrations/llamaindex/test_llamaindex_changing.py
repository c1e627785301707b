"""Documents that are inserted, refreshed and deleted while a retriever searches their index."""

import asyncio
import threading

import faiss
import numpy as np
import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from ragcache_engine import IndexOutOfStep
from ragcache_integrations.llamaindex import RAGCacheRetriever


@pytest.fixture
def map_index(corpus, embeddings):
    """An index of documents on the one store of LlamaIndex's that can delete."""
    store = FaissMapVectorStore(faiss_index=faiss.IndexIDMap2(faiss.IndexFlatL2(64)))
    return VectorStoreIndex.from_documents(
        [Document(text=text, id_=name) for name, text in corpus.items()],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embeddings,
    )


def sources(found):
    return [scored.node.ref_doc_id for scored in found]


@pytest.mark.parametrize("top_k", [1, 3, 6, 100])
def test_a_refreshed_document_is_found_once_and_as_it_is_now(map_index, engine, corpus, top_k):
    retriever = RAGCacheRetriever.from_index(map_index, engine=engine, similarity_top_k=top_k)
    new = f"{corpus['sky']} At sunset it is red."
    assert map_index.refresh_ref_docs([Document(text=new, id_="sky")]) == [True]
    for found in (
        retriever.retrieve("Why is the sky blue?"),
        asyncio.run(retriever.aretrieve("Why is the sky blue?")),
        list(retriever.stream_stages("Why is the sky blue?"))[-1].nodes,
    ):
        assert found[0].text == new
        assert len(found) == min(top_k, 6)  # the vector left behind takes nobody's place
        assert sources(found).count("sky") == 1


def test_a_refreshed_index_answers_as_stock_where_stock_does_not_meet_the_old_vector(
    map_index, engine
):
    map_index.refresh_ref_docs([Document(text="The moon is made of rock.", id_="sky")])
    ours = RAGCacheRetriever.from_index(map_index, engine=engine, similarity_top_k=1)
    stock = map_index.as_retriever(similarity_top_k=1)
    question = "Why does bread rise in the oven?"
    assert ours.retrieve(question) == stock.retrieve(question)


def test_a_deleted_document_is_not_found_any_more(map_index, engine):
    retriever = RAGCacheRetriever.from_index(map_index, engine=engine, similarity_top_k=6)
    map_index.delete_ref_doc("sky", delete_from_docstore=True)
    assert sorted(sources(retriever.retrieve("Why is the sky blue?"))) == [
        "bees",
        "bread",
        "glass",
        "steel",
        "tides",
    ]


def test_an_index_whose_documents_are_all_deleted_finds_nothing(map_index, engine, corpus):
    retriever = RAGCacheRetriever.from_index(map_index, engine=engine)
    for name in corpus:
        map_index.delete_ref_doc(name, delete_from_docstore=True)
    assert retriever.retrieve("Why is the sky blue?") == []


class PausesAfterVectors(FaissVectorStore):
    """Stops between the vectors and their nodes, which the index stores after `add` has returned."""

    def add(self, nodes, **options):
        ids = super().add(nodes, **options)
        if pause := self.client.__dict__.get("pause"):
            pause()
        return ids


def test_a_query_is_answered_while_nodes_are_inserted(make_index, engine):
    vectors = faiss.IndexFlatL2(64)
    index = make_index(PausesAfterVectors(faiss_index=vectors))
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=2)
    snow = TextNode(id_="snow", text="Why is the sky blue?")  # nearest, as soon as it is there
    expected, found = retriever.retrieve("Why is the sky blue?"), []
    vars(vectors)["pause"] = lambda: found.extend(retriever.retrieve("Why is the sky blue?"))
    index.insert_nodes([snow])
    assert found == expected
    assert retriever.retrieve("Why is the sky blue?")[0].node.node_id == "snow"


def test_the_vectors_do_not_change_under_a_search(index, engine, monkeypatch):
    vectors = index.vector_store.client
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=2)
    searching, added = threading.Event(), threading.Event()
    node = TextNode(id_="snow", text="Snow is white.")
    query = FaissVectorStore.query

    def slow(store, *args, **kwargs):
        searching.set()
        assert not added.wait(0.2)
        return query(store, *args, **kwargs)

    monkeypatch.setattr(FaissVectorStore, "query", slow)

    def insert():
        searching.wait()
        index.insert_nodes([node])
        added.set()

    inserting = threading.Thread(target=insert)
    inserting.start()
    assert len(retriever.retrieve("Why is the sky blue?")) == 2
    inserting.join()
    assert vectors.ntotal == 7


@pytest.mark.parametrize("make", ["flat", "map"])
def test_threads_that_insert_and_refresh_make_no_query_fail(
    make, make_index, map_index, engine, corpus
):
    index = map_index if make == "map" else make_index()
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    done, failed, answered = threading.Event(), [], []

    def ask():
        while not done.is_set():
            try:
                answered.append(len(retriever.retrieve("Why is the sky blue?")))
            except Exception as error:
                failed.append(error)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for number in range(60):
        index.insert(Document(text=f"Why is the sky blue? {number}", id_=f"new {number}"))
        if make == "map":
            index.refresh_ref_docs([Document(text=f"{corpus['sky']} {number}", id_="sky")])
    done.set()
    for thread in asking:
        thread.join()
    assert not failed
    assert set(answered) == {3}


@pytest.mark.parametrize("moment", ["before its node is looked up", "before its text is fetched"])
def test_a_document_that_is_deleted_in_the_middle_of_a_search_makes_it_search_again(
    map_index, engine, monkeypatch, moment
):
    retriever = RAGCacheRetriever.from_index(map_index, engine=engine, similarity_top_k=2)
    left = ["sky"]

    def delete_first():
        if left:
            map_index.delete_ref_doc(left.pop(), delete_from_docstore=True)

    query, get_nodes = FaissMapVectorStore.query, map_index.docstore.get_nodes

    def query_then_delete(*args, **kwargs):
        found = query(*args, **kwargs)
        delete_first()
        return found

    def delete_then_fetch(*args, **kwargs):
        delete_first()
        return get_nodes(*args, **kwargs)

    if moment == "before its node is looked up":
        monkeypatch.setattr(FaissMapVectorStore, "query", query_then_delete)
    else:
        monkeypatch.setattr(map_index.docstore, "get_nodes", delete_then_fetch)
    found = retriever.retrieve("Why is the sky blue?")
    assert left == []
    assert len(found) == 2
    assert "sky" not in sources(found)


def test_vectors_of_which_none_has_a_node_are_out_of_step(make_index, engine, embeddings):
    vectors = faiss.IndexFlatL2(64)
    vectors.add(np.zeros((3, 64), "float32"))
    index = make_index(FaissVectorStore(faiss_index=vectors), nodes=[])
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    with pytest.raises(IndexOutOfStep, match="none of the 3 vectors found has a document: load"):
        retriever.retrieve("Why is the sky blue?")
