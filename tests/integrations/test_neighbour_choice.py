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
        self.neighbours.append({name: one.document for name, one in request.contexts.items()})
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


def langchain_store(kind, texts, embed, owners=None):
    from langchain_core.documents import Document as Found
    from langchain_core.embeddings import Embeddings

    class Words(Embeddings):
        def embed_query(self, text):
            return embed(text)

        def embed_documents(self, texts):
            return [embed(text) for text in texts]

    if kind == "ours":
        store_class = pytest.importorskip("ragcache_integrations.langchain").FaissVectorStore
    else:
        store_class = pytest.importorskip("langchain_community.vectorstores").FAISS
    documents = [
        Found(page_content=text, id=name, metadata={"owner": (owners or {}).get(name, "all")})
        for name, text in texts.items()
    ]
    return store_class.from_documents(documents, Words(), ids=list(texts))


STORES = ["ours", "langchain's"]


@pytest.mark.parametrize("kind", STORES)
def test_a_neighbour_is_a_document_that_the_search_may_find(
    borrowing_engine, listening, corpus, bag_of_words, kind
):
    pytest.importorskip("langchain_core")
    from ragcache_integrations.langchain import RAGCacheRetriever

    near = nearest_by_hand(corpus, bag_of_words)
    hidden = next(iter(near.values()))
    owners = {hidden: "bob"}
    store = langchain_store(kind, corpus, bag_of_words, owners)
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=borrowing_engine, k=3, search_kwargs={"filter": {"owner": "all"}}
    )
    found = retriever.invoke(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    (neighbours,) = listening.neighbours
    assert len(neighbours) == 3
    assert hidden not in {*neighbours, *neighbours.values()}
    listening.neighbours.clear()
    found = retriever.invoke(QUESTION, filter=None)  # who may see all has all neighbours
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    assert listening.neighbours == [{one.id: near[one.id] for one in found}]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("replaces", [False, True])
def test_a_deleted_document_is_nobodys_neighbour(
    borrowing_engine, listening, corpus, bag_of_words, kind, replaces
):
    pytest.importorskip("langchain_core")
    from ragcache_integrations.langchain import RAGCacheRetriever

    store = langchain_store(kind, corpus, bag_of_words)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=borrowing_engine, k=1)

    def ask():
        (found,) = retriever.invoke(QUESTION)
        borrowing_engine.generate(f"{found.page_content}\n\n{QUESTION}")
        return listening.neighbours.pop()[found.id]

    gone = ask()
    store.delete([gone])
    left = {name: text for name, text in corpus.items() if name != gone}
    if replaces:
        store.add_texts(["Something else altogether."], ids=["new"])
        left["new"] = "Something else altogether."
    (found,) = retriever.invoke(QUESTION)
    assert ask() == nearest_by_hand(left, bag_of_words)[found.id] != gone


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
