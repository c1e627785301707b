"""Both retrievers tell the engine which document of their index is nearest to each one they find."""

import asyncio
import gc
import weakref

import pytest
from made_embeddings import langchain_embeddings, llamaindex_embedding

from ragcache_engine import Document, EngineConfig, MemoryBackend, RAGCacheEngine
from ragcache_integrations.neighbour_choice import choose_neighbours, last_key, number_of

QUESTION = "Why does the sky look blue?"


def test_neighbours_are_other_documents_with_another_text():
    asked, copy, other = Document("a", "text"), Document("a2", "text"), Document("b", "more")
    assert choose_neighbours(asked, [asked, copy, other]) == [other]
    assert choose_neighbours(asked, [asked, copy]) == []


class Unhashable:
    """As retrievers are that pydantic makes."""

    __hash__ = None


class Slotted:
    """No weak reference to it can be made."""

    __slots__ = ()
    __hash__ = None


@pytest.mark.parametrize("kind", [object, Unhashable, Slotted])
def test_no_two_objects_ever_have_one_number(kind):
    numbers = {number_of(kind()) for _ in range(50)}  # each may lie where the one before it lay
    assert len(numbers) == 50


@pytest.mark.parametrize("kind", [type("Plain", (), {}), Unhashable])
def test_an_object_keeps_its_number(kind):
    thing = kind()
    assert number_of(thing) == number_of(thing)


class Growing(dict):
    """Gets a key more, as of another thread, so many times that its last key is looked up."""

    times = 1

    def __reversed__(self):
        keys = super().__reversed__()
        if self.times:
            self.times -= 1
            self[f"new {self.times}"] = None
        return keys


def test_the_last_key_is_looked_up_while_others_add():
    growing = Growing(a=1)
    assert last_key(growing) == "new 0"
    growing.times = 1_000
    assert last_key(growing) is None
    assert last_key({}) is None


def test_a_store_may_grow_while_a_retriever_looks_whether_it_did(corpus, bag_of_words):
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    from ragcache_integrations.langchain.neighbours import corpus_of_other

    store = InMemoryVectorStore.from_texts(
        list(corpus.values()), langchain_embeddings(bag_of_words)
    )
    store.store = Growing(store.store)
    assert corpus_of_other(store.as_retriever(), None).version


class Listening(MemoryBackend):
    """Keeps the neighbours that its requests carry, those of idle work apart."""

    def __init__(self):
        super().__init__(recompute_ratio=0.1)
        self.neighbours = []

    def generate(self, request):
        if not request.is_guess:
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

    from ragcache_integrations.langchain import FaissVectorStore, RAGCacheRetriever

    store = FaissVectorStore.from_texts(
        list(corpus.values()), langchain_embeddings(bag_of_words), ids=list(corpus)
    )
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=borrowing_engine, k=3)
    found = asyncio.run(retriever.ainvoke(QUESTION)) if is_async else retriever.invoke(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    near = nearest_by_hand(corpus, bag_of_words)
    assert listening.neighbours == [{one.id: near[one.id] for one in found}]


def langchain_store(kind, texts, embed, owners=None):
    from langchain_core.documents import Document as Found

    if kind == "ours":
        store_class = pytest.importorskip("ragcache_integrations.langchain").FaissVectorStore
    else:
        store_class = pytest.importorskip("langchain_community.vectorstores").FAISS
    documents = [
        Found(page_content=text, id=name, metadata={"owner": (owners or {}).get(name, "all")})
        for name, text in texts.items()
    ]
    return store_class.from_documents(documents, langchain_embeddings(embed), ids=list(texts))


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
    from llama_index.core.schema import TextNode

    from ragcache_integrations.llamaindex import RAGCacheRetriever

    vectors = faiss.IndexFlatIP(64)
    vectors.add(np.array([bag_of_words(text) for text in corpus.values()], dtype="float32"))
    nodes = [TextNode(id_=name, text=text) for name, text in corpus.items()]
    retriever = RAGCacheRetriever.from_faiss(
        vectors,
        nodes,
        engine=borrowing_engine,
        embed_model=llamaindex_embedding(bag_of_words),
        similarity_top_k=3,
    )
    retrieve = retriever.aretrieve if is_async else retriever.retrieve
    found = asyncio.run(retrieve(QUESTION)) if is_async else retrieve(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.node.text for one in found), QUESTION]))
    near = nearest_by_hand(corpus, bag_of_words)
    assert listening.neighbours == [{one.node.node_id: near[one.node.node_id] for one in found}]


def test_what_finds_neighbours_keeps_no_engine(corpus, bag_of_words):
    """Else an engine in which documents wait would never be collected."""
    pytest.importorskip("llama_index.core")
    import faiss
    import numpy as np
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.schema import TextNode

    from ragcache_integrations.llamaindex import RAGCacheRetriever

    vectors = faiss.IndexFlatIP(64)
    vectors.add(np.array([bag_of_words(text) for text in corpus.values()], dtype="float32"))
    nodes = [TextNode(id_=name, text=text) for name, text in corpus.items()]
    with RAGCacheEngine(EngineConfig(backend="memory", reuse="anywhere")) as engine:
        retriever = RAGCacheRetriever.from_faiss(
            vectors, nodes, engine=engine, embed_model=MockEmbedding(embed_dim=64)
        )
    searched = retriever._corpus()
    kept = weakref.ref(engine)
    del engine, retriever
    gc.collect()
    assert kept() is None
    assert searched


class Counting:
    """Ranks documents by the words that they share with a text, as BM25's vectorizer does."""

    def get_top_n(self, words, docs, n):
        def shared(doc):
            return len(set(words) & set(doc.page_content.lower().split()))

        return sorted(docs, key=shared, reverse=True)[:n]


def other_langchain_retriever(kind, corpus, embed):
    """A retriever of two documents over a store that is not Faiss, and what it may find."""
    core = pytest.importorskip("langchain_core")
    from langchain_core.documents import Document as Found
    from langchain_core.runnables import RunnableLambda
    from langchain_core.vectorstores import InMemoryVectorStore

    class ByTextOnly(InMemoryVectorStore):
        """As LangChain's base class: no search by vector."""

        def similarity_search_by_vector(self, *args, **kwargs):
            raise NotImplementedError

    documents = [Found(page_content=text, id=name) for name, text in corpus.items()]
    store_class = ByTextOnly if kind == "a store without search by vector" else InMemoryVectorStore
    stock = store_class.from_documents(documents, langchain_embeddings(embed)).as_retriever(
        search_kwargs={"k": 2}
    )
    if kind == "sequence":
        return stock | RunnableLambda(lambda found: found[::-1])
    if kind == "binding":
        return stock.bind(k=2)
    if kind == "ensemble":
        classic = pytest.importorskip("langchain_classic.retrievers")
        return classic.EnsembleRetriever(retrievers=[stock, stock], weights=[0.5, 0.5])
    if kind == "BM25":
        bm25 = pytest.importorskip("langchain_community.retrievers.bm25")
        return bm25.BM25Retriever(
            vectorizer=Counting(),
            docs=documents,
            k=2,
            preprocess_func=lambda text: text.lower().split(),
        )
    assert core
    return stock


OTHERS = ["a store", "a store without search by vector", "sequence", "binding", "ensemble", "BM25"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
def test_any_langchain_retriever_over_a_store_has_neighbours(
    borrowing_engine, listening, corpus, bag_of_words, kind, is_async
):
    stock = other_langchain_retriever(kind, corpus, bag_of_words)
    from ragcache_integrations.langchain import RAGCacheRetriever

    retriever = RAGCacheRetriever.from_retriever(stock, engine=borrowing_engine)
    found = asyncio.run(retriever.ainvoke(QUESTION)) if is_async else retriever.invoke(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    (neighbours,) = listening.neighbours
    assert set(neighbours) == {one.id for one in found}
    if kind != "BM25":
        near = nearest_by_hand(corpus, bag_of_words)
        assert neighbours == {one.id: near[one.id] for one in found}
    for one in found:
        assert neighbours[one.id] in set(corpus) - {one.id}


def test_a_neighbour_in_another_store_is_one_that_the_search_may_find(
    borrowing_engine, listening, corpus, bag_of_words
):
    stock = other_langchain_retriever("a store", corpus, bag_of_words)
    from ragcache_integrations.langchain import RAGCacheRetriever

    near = nearest_by_hand(corpus, bag_of_words)
    hidden = set(list(near.values())[:1])
    retriever = RAGCacheRetriever.from_retriever(stock, engine=borrowing_engine)
    found = retriever.invoke(QUESTION, filter=lambda one: one.id not in hidden)
    borrowing_engine.generate("\n\n".join([*(one.page_content for one in found), QUESTION]))
    (neighbours,) = listening.neighbours
    assert len(neighbours) == 2
    assert not hidden & {*neighbours, *neighbours.values()}


@pytest.mark.parametrize("kind", ["a store", "ensemble", "BM25"])
def test_documents_of_any_langchain_retriever_can_be_warmed(
    borrowing_engine, listening, corpus, bag_of_words, kind
):
    stock = other_langchain_retriever(kind, corpus, bag_of_words)
    from langchain_core.documents import Document as Found

    from ragcache_integrations.langchain import RAGCacheRetriever

    retriever = RAGCacheRetriever.from_retriever(
        stock, engine=borrowing_engine, template="{context}\n\n{question}"
    )
    documents = [Found(page_content=text, id=name) for name, text in corpus.items()]
    assert retriever.warm(documents).sets
    assert any(listening.neighbours), "donors are prepared behind neighbours"
    assert asyncio.run(retriever.awarm(documents, only_missing=True)).computed_tokens == 0


def test_a_retriever_that_cannot_be_asked_for_neighbours_says_so_once(
    borrowing_engine, listening, corpus, caplog
):
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document as Found
    from langchain_core.runnables import RunnableLambda

    from ragcache_integrations.langchain import RAGCacheRetriever

    documents = [Found(page_content=text, id=name) for name, text in corpus.items()]
    retriever = RAGCacheRetriever.from_retriever(
        RunnableLambda(lambda _: documents[:2]), engine=borrowing_engine
    )
    for _ in range(3):
        retriever.invoke(QUESTION)
    (told,) = [one.getMessage() for one in caplog.records if "near another" in one.getMessage()]
    assert "donors='alone'" in told


def test_an_engine_that_borrows_from_no_neighbours_asks_no_store_for_them(
    memory_engine, corpus, caplog
):
    pytest.importorskip("langchain_core")
    from langchain_core.runnables import RunnableLambda

    from ragcache_integrations.langchain import RAGCacheRetriever

    RAGCacheRetriever.from_retriever(RunnableLambda(lambda _: []), engine=memory_engine)
    assert not caplog.records


def other_llama_retriever(kind, corpus, embed):
    pytest.importorskip("llama_index.core")
    from llama_index.core import SummaryIndex, VectorStoreIndex
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    class ByScore(BaseRetriever):
        """As LlamaIndex's BM25Retriever: it holds its nodes and ranks them by a text."""

        def __init__(self):
            self.bm25, self.similarity_top_k = nodes, 2
            super().__init__()

        def _retrieve(self, query_bundle):
            words = set(query_bundle.query_str.lower().split())

            def shared(node):
                return len(words & set(node.text.lower().split()))

            ranked = sorted(self.bm25, key=shared, reverse=True)
            return [NodeWithScore(node=one) for one in ranked[: self.similarity_top_k]]

    nodes = [TextNode(id_=name, text=text) for name, text in corpus.items()]
    stock = VectorStoreIndex(nodes, embed_model=llamaindex_embedding(embed)).as_retriever(
        similarity_top_k=2
    )
    if kind == "fusion":
        return QueryFusionRetriever(
            [stock, stock], llm=MockLLM(), num_queries=1, similarity_top_k=2
        )
    if kind == "summary":
        return SummaryIndex(nodes).as_retriever()
    return ByScore() if kind == "BM25" else stock


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", ["a store", "fusion", "BM25"])
def test_any_llamaindex_retriever_over_a_store_has_neighbours(
    borrowing_engine, listening, corpus, bag_of_words, kind, is_async
):
    stock = other_llama_retriever(kind, corpus, bag_of_words)
    from ragcache_integrations.llamaindex import RAGCacheRetriever

    retriever = RAGCacheRetriever.from_retriever(stock, engine=borrowing_engine)
    retrieve = retriever.aretrieve if is_async else retriever.retrieve
    found = asyncio.run(retrieve(QUESTION)) if is_async else retrieve(QUESTION)
    borrowing_engine.generate("\n\n".join([*(one.node.text for one in found), QUESTION]))
    (neighbours,) = listening.neighbours
    assert set(neighbours) == {one.node.node_id for one in found}
    if kind != "BM25":
        near = nearest_by_hand(corpus, bag_of_words)
        assert neighbours == {one.node.node_id: near[one.node.node_id] for one in found}


def test_nodes_of_any_llamaindex_retriever_can_be_warmed(
    borrowing_engine, listening, corpus, bag_of_words
):
    stock = other_llama_retriever("a store", corpus, bag_of_words)
    from llama_index.core.schema import TextNode

    from ragcache_integrations.llamaindex import RAGCacheRetriever

    retriever = RAGCacheRetriever.from_retriever(
        stock, engine=borrowing_engine, template="{context_str}\n\n{query_str}"
    )
    nodes = [TextNode(id_=name, text=text) for name, text in corpus.items()]
    assert retriever.warm(nodes).sets
    assert any(listening.neighbours), "donors are prepared behind neighbours"
    assert asyncio.run(retriever.awarm(nodes, only_missing=True)).computed_tokens == 0


def test_a_llamaindex_retriever_without_a_measure_says_so_once(
    borrowing_engine, corpus, bag_of_words, caplog
):
    stock = other_llama_retriever("summary", corpus, bag_of_words)
    from ragcache_integrations.llamaindex import RAGCacheRetriever

    retriever = RAGCacheRetriever.from_retriever(stock, engine=borrowing_engine)
    retriever.retrieve(QUESTION)
    retriever.retrieve(QUESTION)
    assert sum("near another" in one.getMessage() for one in caplog.records) == 1
