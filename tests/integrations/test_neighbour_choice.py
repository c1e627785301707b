"""Both retrievers tell the engine which document of their index is nearest to each one they find."""

import asyncio

import pytest

from ragcache_engine import Document, EngineConfig, MemoryBackend, RAGCacheEngine
from ragcache_integrations.neighbour_choice import choose_neighbour

QUESTION = "Why does the sky look blue?"


def test_the_neighbour_is_the_nearest_that_is_another_document_with_another_text():
    asked, copy, other = Document("a", "text"), Document("a2", "text"), Document("b", "more")
    assert choose_neighbour(asked, [asked, copy, other]) == other
    assert choose_neighbour(asked, [asked, copy]) is None


class Listening(MemoryBackend):
    """Keeps the neighbours that its requests carry."""

    def __init__(self):
        super().__init__(recompute_ratio=0.1)
        self.neighbours = []

    def generate(self, request):
        self.neighbours.append({name: near for name, (near, _) in request.contexts.items()})
        return super().generate(request)


@pytest.fixture
def listening():
    return Listening()


@pytest.fixture
def borrowing_engine(listening):
    config = EngineConfig(
        backend="memory", reuse="anywhere", recompute_ratio=0.1, speculation="off"
    )
    with RAGCacheEngine(config, backend=listening) as engine:
        yield engine


def nearest_by_hand(texts, embed):
    """name -> the name of the text whose vector is nearest to its own."""
    vectors = {name: embed(text) for name, text in texts.items()}

    def likeness(one, other):
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    return {
        name: max((other for other in texts if other != name), key=lambda it: likeness(name, it))
        for name in texts
    }


@pytest.mark.parametrize("is_async", [False, True])
def test_langchains_retriever_looks_neighbours_up_in_its_store(
    borrowing_engine, listening, corpus, bag_of_words, is_async
):
    pytest.importorskip("langchain_core")
    from langchain_core.embeddings import Embeddings

    from ragcache_integrations.langchain import FaissVectorStore, RAGCacheRetriever

    class Words(Embeddings):
        def embed_query(self, text):
            return bag_of_words(text)

        def embed_documents(self, texts):
            return [bag_of_words(text) for text in texts]

    store = FaissVectorStore.from_texts(list(corpus.values()), Words(), ids=list(corpus))
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=borrowing_engine, k=3)
    found = asyncio.run(retriever.ainvoke(QUESTION)) if is_async else retriever.invoke(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    near = nearest_by_hand(corpus, bag_of_words)
    assert listening.neighbours == [{one.id: near[one.id] for one in found}]


@pytest.mark.parametrize("is_async", [False, True])
def test_llamaindex_retriever_looks_neighbours_up_in_its_index(
    borrowing_engine, listening, corpus, bag_of_words, is_async
):
    pytest.importorskip("llama_index.core")
    import faiss
    import numpy as np
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import TextNode

    from ragcache_integrations.llamaindex import RAGCacheRetriever

    class Words(BaseEmbedding):
        def _get_text_embedding(self, text):
            return bag_of_words(text)

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return bag_of_words(query)

    vectors = faiss.IndexFlatIP(64)
    vectors.add(np.array([bag_of_words(text) for text in corpus.values()], dtype="float32"))
    nodes = [TextNode(id_=name, text=text) for name, text in corpus.items()]
    retriever = RAGCacheRetriever.from_faiss(
        vectors, nodes, engine=borrowing_engine, embed_model=Words(), similarity_top_k=3
    )
    retrieve = retriever.aretrieve if is_async else retriever.retrieve
    found = asyncio.run(retrieve(QUESTION)) if is_async else retrieve(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.node.text for one in found), QUESTION]))
    near = nearest_by_hand(corpus, bag_of_words)
    assert listening.neighbours == [{one.node.node_id: near[one.node.node_id] for one in found}]
