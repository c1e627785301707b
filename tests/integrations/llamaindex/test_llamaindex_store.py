import asyncio

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import QueryBundle
from llama_index.core.vector_stores import SimpleVectorStore

from ragcache_engine import (
    InvalidTopK,
    QueryShapeError,
    RAGCacheError,
    UnknownDocument,
    UnsupportedStore,
)
from ragcache_integrations.llamaindex import RAGCacheRetriever


@pytest.fixture
def error_of(engine):
    """Ask an index synchronously and asynchronously, and return the error that both raise."""

    def error_of(index, query="Why is the sky blue?"):
        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=6)
        errors = []
        for asked in (
            lambda: retriever.retrieve(query),
            lambda: asyncio.run(retriever.aretrieve(query)),
        ):
            with pytest.raises(RAGCacheError) as caught:
                asked()
            errors.append(caught.value)
        assert type(errors[0]) is type(errors[1])
        return errors[0]

    return error_of


@pytest.mark.parametrize("top_k", [0, -1])
def test_fewer_than_one_node_is_refused_at_construction(index, engine, top_k):
    with pytest.raises(InvalidTopK, match="at least one document"):
        RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=top_k)
    with pytest.raises(InvalidTopK):
        RAGCacheRetriever(index, engine=engine, similarity_top_k=top_k)


@pytest.mark.parametrize("top_k", [2.5, None, "3"])
def test_a_number_of_nodes_that_is_no_integer_is_refused(index, engine, top_k):
    with pytest.raises(InvalidTopK, match="a whole number"):
        RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=top_k)
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    retriever.similarity_top_k = top_k
    with pytest.raises(InvalidTopK, match="a whole number"):
        retriever.retrieve("Why is the sky blue?")


def test_a_number_of_nodes_may_be_one_of_numpys(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=np.int64(3))
    assert len(retriever.retrieve("Why is the sky blue?")) == 3


def test_fewer_than_one_node_is_refused_after_a_change_too(index, engine, embeddings):
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    retriever.similarity_top_k = 0
    with pytest.raises(InvalidTopK):
        retriever.retrieve("Why is the sky blue?")
    assert embeddings.queries == 0


def test_an_index_that_is_not_on_faiss_is_refused_at_construction(engine, embeddings, nodes):
    simple = VectorStoreIndex(nodes, embed_model=embeddings)
    assert isinstance(simple.vector_store, SimpleVectorStore)
    with pytest.raises(UnsupportedStore, match="VectorStoreIndex over SimpleVectorStore"):
        RAGCacheRetriever.from_index(simple, engine=engine)
    for stranger in (object(), None, simple.vector_store):
        with pytest.raises(UnsupportedStore, match="over FaissVectorStore, got"):
            RAGCacheRetriever.from_index(stranger, engine=engine)


def test_an_empty_index_finds_nothing_and_embeds_nothing(make_index, engine, embeddings):
    empty = make_index(nodes=[])
    assert empty.as_retriever().retrieve("Why is the sky blue?") == []
    asked = embeddings.queries
    retriever = RAGCacheRetriever.from_index(empty, engine=engine)
    assert retriever.retrieve("Why is the sky blue?") == []
    assert asyncio.run(retriever.aretrieve("Why is the sky blue?")) == []
    assert list(retriever.stream_stages("Why is the sky blue?")) == [([], 1.0, True)]
    assert embeddings.queries == asked


@pytest.mark.parametrize("drift", ["a node too few", "a node too many", "a node out of place"])
def test_a_vector_without_a_node_is_passed_over(index, engine, drift):
    nodes_dict = index.index_struct.nodes_dict
    if drift == "a node too few":
        del nodes_dict["0"]
    elif drift == "a node too many":
        nodes_dict["6"] = "another"
    else:
        nodes_dict["99"] = nodes_dict.pop("0")
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=6)
    found = {scored.node.node_id for scored in retriever.retrieve("Why is the sky blue?")}
    lost = set() if drift == "a node too many" else {"sky"}
    assert found == {"sky", "tides", "bread", "glass", "bees", "steel"} - lost


def test_a_query_vector_of_another_size_is_named(index, error_of, embeddings):
    embeddings.size = 32
    error = error_of(index)
    assert isinstance(error, QueryShapeError)
    assert "32 dimensions, the index 64" in str(error)


def test_an_embedding_the_query_brings_is_checked_too(index, error_of):
    assert isinstance(error_of(index, QueryBundle("q", embedding=[1.0])), QueryShapeError)


def test_a_query_without_anything_to_embed_is_named(index, error_of):
    assert isinstance(error_of(index, QueryBundle("")), QueryShapeError)


def test_a_node_the_docstore_lacks_is_named(index, error_of):
    index.docstore.delete_document("sky")
    error = error_of(index)
    assert isinstance(error, UnknownDocument)
    assert "'sky'" in str(error)
