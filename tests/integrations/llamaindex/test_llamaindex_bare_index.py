"""A Faiss index that was built elsewhere, and its nodes."""

import asyncio

import faiss
import numpy as np
import pytest
from llama_index.core import Settings
from llama_index.core.schema import IndexNode, TextNode

from ragcache_engine import IndexOutOfStep, InvalidTopK, UnsupportedStore
from ragcache_integrations.llamaindex import RAGCacheRetriever

QUESTION = "Why is the sky blue?"


@pytest.fixture
def vectors(nodes, bag_of_words):
    return np.array([bag_of_words(node.get_content()) for node in nodes], dtype="float32")


@pytest.fixture
def bare(vectors):
    index = faiss.IndexFlatL2(64)
    index.add(vectors)
    return index


@pytest.fixture
def retriever(bare, nodes, engine, embeddings):
    return RAGCacheRetriever.from_faiss(
        bare, nodes, engine=engine, embed_model=embeddings, similarity_top_k=3
    )


def names(found):
    return [scored.node.node_id for scored in found]


def test_it_finds_the_nodes_that_faiss_finds(retriever, bare, nodes, bag_of_words):
    query = np.array([bag_of_words(QUESTION)], dtype="float32")
    distances, places = bare.search(query, 3)
    for found in (retriever.retrieve(QUESTION), asyncio.run(retriever.aretrieve(QUESTION))):
        assert names(found) == [nodes[place].node_id for place in places[0]]
        assert [scored.score for scored in found] == pytest.approx(distances[0])


def test_the_engine_recognises_what_it_finds(retriever, engine):
    found = retriever.retrieve(QUESTION)
    prompt = "\n\n".join(scored.node.get_content(metadata_mode="llm") for scored in found)
    assert engine.generate(prompt).usage.document_ids == tuple(names(found))


def test_nothing_is_embedded_until_a_question_comes(bare, nodes, engine, embeddings):
    RAGCacheRetriever.from_faiss(bare, nodes, engine=engine, embed_model=embeddings)
    assert embeddings.queries == 0
    assert all(node.embedding is None for node in nodes)


def test_nodes_may_be_named_by_the_ids_of_the_index(vectors, nodes, engine, embeddings):
    numbered = faiss.IndexIDMap2(faiss.IndexFlatL2(64))
    numbered.add_with_ids(vectors, np.arange(100, 100 + len(nodes)))
    by_id = dict(enumerate(nodes, start=100))
    retriever = RAGCacheRetriever.from_faiss(
        numbered, by_id, engine=engine, embed_model=embeddings, similarity_top_k=1
    )
    assert names(retriever.retrieve(QUESTION)) == ["sky"]


def test_the_embedding_model_is_otherwise_that_of_the_settings(
    bare, nodes, engine, embeddings, monkeypatch
):
    monkeypatch.setattr(Settings, "_embed_model", embeddings)
    retriever = RAGCacheRetriever.from_faiss(bare, nodes, engine=engine, similarity_top_k=1)
    assert names(retriever.retrieve(QUESTION)) == ["sky"]


def test_a_node_that_stands_for_another_object_leads_to_it(
    bare, nodes, engine, embeddings, bag_of_words
):
    moon = TextNode(id_="moon", text="The moon is a rock.")
    pointer = IndexNode(text="Where does the moon come from?", index_id="m", obj=moon)
    bare.add(np.array([bag_of_words(pointer.text)], dtype="float32"))
    retriever = RAGCacheRetriever.from_faiss(
        bare, [*nodes, pointer], engine=engine, embed_model=embeddings, similarity_top_k=1
    )
    assert names(retriever.retrieve("Where does the moon come from?")) == ["moon"]


@pytest.mark.parametrize("top_k", [0, -1])
def test_fewer_than_one_node_is_refused_at_birth(bare, nodes, engine, embeddings, top_k):
    with pytest.raises(InvalidTopK):
        RAGCacheRetriever.from_faiss(
            bare, nodes, engine=engine, embed_model=embeddings, similarity_top_k=top_k
        )


def test_what_is_no_faiss_index_is_refused_at_birth(index, nodes, engine, embeddings):
    for stranger in (index, None, [1.0]):
        with pytest.raises(UnsupportedStore, match=r"takes a faiss\.Index"):
            RAGCacheRetriever.from_faiss(stranger, nodes, engine=engine, embed_model=embeddings)


def test_vectors_and_nodes_that_do_not_pair_up_are_refused_at_birth(
    bare, nodes, engine, embeddings
):
    for wrong in (nodes[:-1], [*nodes, TextNode(text="one more")], [nodes[0]] * len(nodes)):
        with pytest.raises(IndexOutOfStep):
            RAGCacheRetriever.from_faiss(bare, wrong, engine=engine, embed_model=embeddings)


def test_nodes_with_other_ids_than_the_vectors_are_named(vectors, nodes, engine, embeddings):
    from ragcache_engine import IndexOutOfStep

    numbered = faiss.IndexIDMap2(faiss.IndexFlatL2(64))
    numbered.add_with_ids(vectors, np.arange(100, 100 + len(nodes)))
    retriever = RAGCacheRetriever.from_faiss(
        numbered, dict(enumerate(nodes)), engine=engine, embed_model=embeddings
    )
    with pytest.raises(IndexOutOfStep):
        retriever.retrieve(QUESTION)
