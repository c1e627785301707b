"""Both frameworks over an index server: what the local retriever finds, and the engine hears as early."""

from __future__ import annotations

import asyncio
import copy
import pickle
from contextlib import ExitStack
from io import StringIO

import pytest

faiss = pytest.importorskip("faiss")
np = pytest.importorskip("numpy")
pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from http_servers import serve_app  # noqa: E402
from langchain_core.embeddings import Embeddings  # noqa: E402
from langchain_core.output_parsers import StrOutputParser  # noqa: E402
from langchain_core.prompts import PromptTemplate  # noqa: E402
from langchain_core.runnables import RunnablePassthrough  # noqa: E402
from llama_index.core import StorageContext, VectorStoreIndex  # noqa: E402
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler  # noqa: E402
from llama_index.core.embeddings import BaseEmbedding  # noqa: E402
from llama_index.core.query_engine import RetrieverQueryEngine  # noqa: E402
from llama_index.core.response_synthesizers import get_response_synthesizer  # noqa: E402
from llama_index.core.schema import QueryBundle, TextNode  # noqa: E402
from llama_index.vector_stores.faiss import FaissMapVectorStore  # noqa: E402
from llama_index.vector_stores.faiss import FaissVectorStore as LlamaFaiss  # noqa: E402
from rich.console import Console  # noqa: E402

from ragcache_cli.index_serving import load_served  # noqa: E402
from ragcache_cli.terminal import Phases  # noqa: E402
from ragcache_engine import (  # noqa: E402
    EngineConfig,
    EngineNeeded,
    InvalidArgument,
    InvalidTopK,
    QueryShapeError,
    RAGCacheEngine,
    ServerUnreachable,
)
from ragcache_engine.index_server import IndexedDocument, IndexServer  # noqa: E402
from ragcache_engine.index_server.app import IndexApp  # noqa: E402
from ragcache_engine.index_server.served import ServedIndex  # noqa: E402
from ragcache_integrations import langchain, llamaindex  # noqa: E402

TEMPLATE = "Read this.\n\n{context}\n\nQuestion: {question}\n"
QUESTIONS = (
    "Why is the sky blue?",
    "What makes bread rise?",
    "How do bees tell where flowers are?",
)


@pytest.fixture
def embeddings(bag_of_words):
    class Words(Embeddings):
        def embed_query(self, text):
            return bag_of_words(text)

        def embed_documents(self, texts):
            return [bag_of_words(text) for text in texts]

    return Words()


@pytest.fixture
def embed_model(bag_of_words):
    class Words(BaseEmbedding):
        def _get_query_embedding(self, query):
            return bag_of_words(query)

        async def _aget_query_embedding(self, query):
            return bag_of_words(query)

        def _get_text_embedding(self, text):
            return bag_of_words(text)

    return Words()


@pytest.fixture
def store(corpus, embeddings):
    """LangChain's local store."""
    metadata = [{"place": name} for name in corpus]
    return langchain.FaissVectorStore.from_texts(
        list(corpus.values()), embeddings, metadata, ids=list(corpus)
    )


@pytest.fixture
def index(corpus, embed_model):
    """LlamaIndex's local index."""
    storage = StorageContext.from_defaults(vector_store=LlamaFaiss(faiss.IndexFlatL2(64)))
    nodes = [
        TextNode(
            id_=name, text=text, metadata={"place": name, "hidden": 1},
            excluded_llm_metadata_keys=["hidden"],
        )
        for name, text in corpus.items()
    ]  # fmt: skip
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=embed_model)


@pytest.fixture
def serve():
    with ExitStack() as opened:

        def begin(folder):
            served = load_served(folder, Phases(Console(file=StringIO())))
            return opened.enter_context(serve_app(IndexApp(served))).url

        yield begin


@pytest.fixture
def langchain_url(store, tmp_path, serve):
    store.save_local(tmp_path / "store")
    return serve(tmp_path / "store")


@pytest.fixture
def llamaindex_url(index, tmp_path, serve):
    index.storage_context.persist(tmp_path / "index")
    return serve(tmp_path / "index")


# -- LangChain -------------------------------------------------------------------------------------


def test_langchain_finds_what_the_local_store_finds(langchain_url, store, embeddings, engine):
    local = langchain.RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3)
    remote = langchain.RAGCacheRetriever.from_server(
        langchain_url, engine=engine, k=3, embeddings=embeddings
    )
    for question in QUESTIONS:
        assert remote.invoke(question) == local.invoke(question)
        assert remote.invoke(question, k=5) == local.invoke(question, k=5)
        assert asyncio.run(remote.ainvoke(question)) == local.invoke(question)
        *_, (documents, share, is_final) = remote.stream_stages(question)
        assert (documents, share, is_final) == (local.invoke(question), 1.0, True)


def test_langchain_answers_are_begun_while_the_server_searches(langchain_url, embeddings):
    config = EngineConfig(model="any", backend="memory", speculation="on")
    with RAGCacheEngine(config) as engine:
        llm = langchain.RAGCacheLLM(engine=engine, max_tokens=8)
        retriever = langchain.RAGCacheRetriever.from_server(
            langchain_url,
            engine=engine,
            k=2,
            embeddings=embeddings,
            template=PromptTemplate.from_template(TEMPLATE),
            llm=llm,
        )
        chain = (
            {
                "context": retriever | (lambda found: "\n\n".join(d.page_content for d in found)),
                "question": RunnablePassthrough(),
            }
            | PromptTemplate.from_template(TEMPLATE)
            | llm
            | StrOutputParser()
        )
        for question in QUESTIONS * 3:  # on a busy machine some searches end before a guess begins
            chain.invoke(question)
        assert engine.stats().speculation.adopted >= 1


def test_langchain_borrows_behind_the_servers_neighbours(langchain_url, embeddings):
    config = EngineConfig(model="any", backend="memory", reuse="anywhere", recompute_ratio=0.1)
    with RAGCacheEngine(config) as engine:
        retriever = langchain.RAGCacheRetriever.from_server(
            langchain_url, engine=engine, embeddings=embeddings, template=TEMPLATE
        )
        corpus = retriever._corpus()
        local = {one.id: one for one in retriever._all_documents()}
        document = langchain.engine_retriever.engine_document(local["sky"])
        ((nearest, *_),) = corpus.look_up([document])
        assert nearest.id in local
        assert nearest.id != "sky"
        assert retriever.warm().sets == len(local)


def test_langchain_retrievers_can_be_copied_and_not_pickled(langchain_url, embeddings, engine):
    retriever = langchain.RAGCacheRetriever.from_server(
        langchain_url, engine=engine, embeddings=embeddings
    )
    assert copy.deepcopy(retriever).invoke(QUESTIONS[0]) == retriever.invoke(QUESTIONS[0])
    with pytest.raises(EngineNeeded):
        pickle.dumps(retriever)


def test_langchain_options_of_a_local_store_are_refused_by_name(langchain_url, embeddings, engine):
    retriever = langchain.RAGCacheRetriever.from_server(
        langchain_url, engine=engine, embeddings=embeddings
    )
    with pytest.raises(InvalidArgument, match="takes no filter"):
        retriever.invoke(QUESTIONS[0], filter={"place": "sky"})
    with pytest.raises(InvalidTopK):
        retriever.invoke(QUESTIONS[0], k=0)


def test_langchain_finds_the_same_after_documents_were_deleted(
    store, embeddings, engine, tmp_path, serve
):
    store.delete(["bread", "glass"])
    store.save_local(tmp_path / "store")
    remote = langchain.RAGCacheRetriever.from_server(
        serve(tmp_path / "store"), engine=engine, k=4, embeddings=embeddings
    )
    local = langchain.RAGCacheRetriever.from_vectorstore(store, engine=engine, k=4)
    for question in QUESTIONS:
        assert remote.invoke(question) == local.invoke(question)


def test_an_index_that_gives_back_no_vectors_is_named_once(
    langchain_url, embeddings, caplog, monkeypatch
):
    monkeypatch.setattr("ragcache_engine.index_server.served._gives_vectors", lambda *_: False)
    config = EngineConfig(model="any", backend="memory", reuse="anywhere", recompute_ratio=0.1)
    served = {0: IndexedDocument("tides", "The tides follow the moon.")}
    index = faiss.IndexFlatL2(2)
    index.add(np.eye(1, 2, dtype=np.float32))
    with (
        RAGCacheEngine(config) as engine,
        serve_app(IndexApp(ServedIndex(index, served))) as server,
    ):
        retriever = langchain.RAGCacheRetriever.from_server(server.url, engine=engine)
        assert retriever._corpus() is None
        assert retriever._corpus() is None
    told = [one for one in caplog.messages if "gives back no vectors" in one]
    assert len(told) == 1


# -- LlamaIndex ------------------------------------------------------------------------------------


def test_llamaindex_finds_what_the_local_index_finds(llamaindex_url, index, embed_model, engine):
    local = llamaindex.RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    remote = llamaindex.RAGCacheRetriever.from_server(
        llamaindex_url, engine=engine, similarity_top_k=3, embed_model=embed_model
    )
    for question in QUESTIONS:
        wanted = [(one.node, one.score) for one in local.retrieve(question)]
        assert [(one.node, one.score) for one in remote.retrieve(question)] == wanted
        found = asyncio.run(remote.aretrieve(question))
        assert [(one.node, one.score) for one in found] == wanted
        *_, (nodes, share, is_final) = remote.stream_stages(question)
        assert [(one.node, one.score) for one in nodes] == wanted
        assert (share, is_final) == (1.0, True)


def test_llamaindex_answers_from_an_index_server(llamaindex_url, embed_model, engine, recorded):
    llm = llamaindex.RAGCacheLLM(engine=engine, max_tokens=8)
    retriever = llamaindex.RAGCacheRetriever.from_server(
        llamaindex_url, engine=engine, embed_model=embed_model, llm=llm
    )
    synthesizer = get_response_synthesizer(llm=llm, response_mode="compact")
    answer = RetrieverQueryEngine(retriever, synthesizer).query(QUESTIONS[0])
    assert answer.response
    prompt = recorded[-1][0]
    assert "place: sky" in prompt
    assert "hidden" not in prompt


def test_llamaindex_shows_the_text_alone_of_what_another_program_indexed(
    langchain_url, embed_model, engine, corpus
):
    retriever = llamaindex.RAGCacheRetriever.from_server(
        langchain_url, engine=engine, embed_model=embed_model
    )
    nearest = retriever.retrieve(QUESTIONS[0])[0].node
    assert llamaindex.documents.engine_document(nearest).text == corpus[nearest.node_id]
    assert nearest.metadata == {"place": nearest.node_id}


def test_llamaindex_embeds_what_a_query_says_to_embed(llamaindex_url, embed_model, engine, corpus):
    asked = QueryBundle("Why?", custom_embedding_strs=[corpus["bees"]])
    retriever = llamaindex.RAGCacheRetriever.from_server(
        llamaindex_url, engine=engine, embed_model=embed_model, similarity_top_k=1
    )
    assert [one.node.node_id for one in retriever.retrieve(asked)] == ["bees"]
    on_server = llamaindex.RAGCacheRetriever.from_server(llamaindex_url, engine=engine)
    with pytest.raises(QueryShapeError, match="several"):
        on_server.retrieve(QueryBundle("Why?", custom_embedding_strs=["a", "b"]))


def test_llamaindex_callbacks_see_the_retrieval(llamaindex_url, embed_model, engine):
    seen = LlamaDebugHandler(print_trace_on_end=False)
    retriever = llamaindex.RAGCacheRetriever.from_server(
        llamaindex_url,
        engine=engine,
        embed_model=embed_model,
        callback_manager=CallbackManager([seen]),
    )
    retriever.retrieve(QUESTIONS[0])
    assert len(seen.get_event_pairs(CBEventType.RETRIEVE)) == 1


def test_llamaindex_serves_an_index_that_names_its_vectors(
    corpus, embed_model, engine, tmp_path, serve
):
    vectors = FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(64)))
    storage = StorageContext.from_defaults(vector_store=vectors)
    nodes = [TextNode(id_=str(at), text=text) for at, text in enumerate(reversed(corpus.values()))]
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=embed_model)
    index.delete_nodes(["2"])
    storage.persist(tmp_path / "index")
    local = llamaindex.RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    remote = llamaindex.RAGCacheRetriever.from_server(
        serve(tmp_path / "index"), engine=engine, similarity_top_k=3, embed_model=embed_model
    )
    for question in QUESTIONS:
        wanted = [one.node.node_id for one in local.retrieve(question)]
        assert [one.node.node_id for one in remote.retrieve(question)] == wanted


# -- both ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", [langchain, llamaindex], ids=["langchain", "llamaindex"])
def test_what_cannot_work_is_refused_when_the_retriever_is_made(framework, engine):
    make = framework.RAGCacheRetriever.from_server
    count = "k" if framework is langchain else "similarity_top_k"
    for server in (7, "host:8100"):
        with pytest.raises(InvalidArgument):
            make(server, engine=engine)
    with pytest.raises(InvalidArgument, match="api_key"):
        make(IndexServer("http://host"), engine=engine, api_key="a key")
    with pytest.raises(InvalidArgument, match="engine"):
        make("http://host", engine=engine.config)
    with pytest.raises(InvalidTopK):
        make("http://host", engine=engine, **{count: 0})


def test_without_an_embedding_model_anywhere_the_first_search_says_so(langchain_url, engine):
    retriever = langchain.RAGCacheRetriever.from_server(langchain_url, engine=engine)
    with pytest.raises(InvalidArgument, match="embedding model"):
        retriever.invoke(QUESTIONS[0])


def test_a_server_that_is_gone_is_named(engine, monkeypatch):
    monkeypatch.setattr("ragcache_engine.backends.server.connection.RETRY_WAITS_S", (0.01,))
    retriever = langchain.RAGCacheRetriever.from_server(
        "http://127.0.0.1:9", engine=engine, embeddings=None
    )
    with pytest.raises(ServerUnreachable):
        retriever.invoke(QUESTIONS[0])
