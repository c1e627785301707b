"""One engine under a LangChain chain and a LlamaIndex query engine, in one process, at the same time."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

import faiss
import numpy as np
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.tools import FunctionTool
from made_embeddings import langchain_embeddings, llamaindex_embedding

from ragcache_engine import EngineConfig, MemoryBackend, RAGCacheEngine
from ragcache_integrations import langchain, llamaindex

QUESTIONS = [
    "Why does the sky look blue and not violet?",
    "What makes bread rise in the oven?",
    "Why do the tides rise twice a day?",
    "How do bees tell the way to a flower?",
]
TOKENS = 8
TOOL = {
    "type": "function",
    "function": {"name": "wait", "description": "Wait.", "parameters": {"type": "object"}},
}
FUNCTION = FunctionTool.from_defaults(lambda: None, name="wait", description="Wait.")


def langchain_asks(engine, corpus, embed):
    store = langchain.FaissVectorStore.from_texts(
        list(corpus.values()), langchain_embeddings(embed), ids=list(corpus)
    )
    retriever = langchain.RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    inputs = {
        "context": retriever | (lambda found: "\n\n".join(d.page_content for d in found)),
        "question": RunnablePassthrough(),
    }
    prompt = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
    llm = langchain.RAGCacheLLM(engine=engine, temperature=0, max_tokens=TOKENS)
    return (inputs | prompt | llm | StrOutputParser()).invoke


def llamaindex_asks(engine, corpus, embed):
    vectors = faiss.IndexFlatL2(64)
    vectors.add(np.array([embed(text) for text in corpus.values()], dtype="float32"))
    retriever = llamaindex.RAGCacheRetriever.from_faiss(
        vectors,
        [TextNode(id_=name, text=text) for name, text in corpus.items()],
        engine=engine,
        embed_model=llamaindex_embedding(embed),
        similarity_top_k=2,
    )
    llm = llamaindex.RAGCacheLLM(engine=engine, temperature=0, max_tokens=TOKENS)
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm)
    return lambda question: str(queries.query(question))


ON_A_MODEL = [
    pytest.param(name, marks=pytest.mark.vllm) for name in ("vllm_engine", "server_engine")
]


@pytest.fixture(params=["engine", *ON_A_MODEL])
def shared(request):
    return request.getfixturevalue(request.param)


def test_one_engine_answers_both_at_once_as_it_answers_each_alone(shared, corpus, bag_of_words):
    asks = [make(shared, corpus, bag_of_words) for make in (langchain_asks, llamaindex_asks)]
    alone = [[ask(question) for question in QUESTIONS] for ask in asks]
    before = shared.stats()
    with ThreadPoolExecutor(2 * len(QUESTIONS)) as pool:
        running = [[pool.submit(ask, question) for question in QUESTIONS] for ask in asks]
        at_once = [[answer.result() for answer in each] for each in running]
    after = shared.stats()
    assert at_once == alone
    assert all(any(answer.strip() for answer in answers) for answers in alone)
    assert after.finished - before.finished == 2 * len(QUESTIONS)
    assert after.cached.total - before.cached.total > 0


class NotesThreads(MemoryBackend):
    """Notes the threads that wait for its chat template, or for its reader of tool calls."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def render(self, conversation):
        self.threads.add(threading.get_ident())
        return super().render(conversation)

    def tool_reader(self, tools):
        return NotingReader(super().tool_reader(tools), self.threads)


class NotingReader:
    def __init__(self, reader, threads):
        self.reader, self.threads = reader, threads

    def read(self, text, token_ids):
        return self.reader.read(text, token_ids)

    def whole(self, text):
        self.threads.add(threading.get_ident())
        return self.reader.whole(text)

    def end(self):
        self.threads.add(threading.get_ident())
        return self.reader.end()


def langchain_chat(engine):
    return langchain.ChatRAGCache(engine=engine, temperature=0, max_tokens=TOKENS)


def llamaindex_llm(engine):
    return llamaindex.RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=TOKENS)


async def langchain_whole(engine):
    await langchain_chat(engine).bind_tools([TOOL]).ainvoke("Hello.")


async def langchain_stream(engine):
    async for _ in langchain_chat(engine).bind_tools([TOOL]).astream("Hello."):
        pass


async def llamaindex_whole(engine):
    await llamaindex_llm(engine).achat([ChatMessage("Hello.")], tools=[FUNCTION])


async def llamaindex_stream(engine):
    llm = llamaindex_llm(engine)
    async for _ in await llm.astream_chat([ChatMessage("Hello.")], tools=[FUNCTION]):
        pass


async def llamaindex_completion(engine):
    await llamaindex_llm(engine).acomplete("Hello.")


@pytest.mark.parametrize(
    "ask",
    [
        langchain_whole,
        langchain_stream,
        llamaindex_whole,
        llamaindex_stream,
        llamaindex_completion,
    ],
)
def test_no_event_loop_waits_for_a_template_which_may_be_on_a_server_that_is_slow(ask):
    backend = NotesThreads()
    with RAGCacheEngine(EngineConfig(model="any", backend="memory"), backend=backend) as engine:
        asyncio.run(ask(engine))
    assert bool(backend.threads) == (ask is not llamaindex_completion)
    assert threading.get_ident() not in backend.threads
