"""What an engine waits for holds nobody else up, and no wait of a request is without an end."""

from __future__ import annotations

import asyncio
import threading
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ragcache_engine import (
    Document,
    EngineConfig,
    MemoryBackend,
    RAGCacheEngine,
    RequestTimedOut,
    SamplingOptions,
    TokenizedPrompt,
)
from ragcache_engine.errors import EngineDied

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
TEMPLATE = "{context}\n\n{question}"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TWELVE = SamplingOptions(max_tokens=12)
SOON_S = 20


@pytest.fixture
def no_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop's own threads are taken: by calls of the application's that hang, or by a disk."""
    run_in_executor = BaseEventLoop.run_in_executor

    def run(self: BaseEventLoop, executor: Any, call: Any, *args: Any) -> Any:
        if executor is None:
            return self.create_future()  # nobody will ever end it
        return run_in_executor(self, executor, call, *args)

    monkeypatch.setattr(BaseEventLoop, "run_in_executor", run)


@contextmanager
def hanging() -> Iterator[threading.Event]:
    """An event that is set when the block ends: what waits for it hangs until then."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def ask(engine: RAGCacheEngine, question: str = "Why?", **retrieval: Any) -> str:
    """Ask with a retrieval, as chains do."""
    with engine.retrieval(question, chain="chain", **retrieval) as found:
        found.found([TIDES])
    return engine.generate(f"{TIDES.text}\n\n{question}", options=TWELVE).text


async def ask_often(engine: RAGCacheEngine) -> None:
    for question in "Why?", "When?", "Where?":
        with engine.retrieval(question, chain="chain", template=TEMPLATE) as found:
            found.provisional([TIDES])
            found.found([TIDES])
        await engine.agenerate(f"{TIDES.text}\n\n{question}", options=TWELVE)


async def warm(engine: RAGCacheEngine) -> None:
    for only_missing in False, True:
        await engine.awarm([[TIDES]], template=TEMPLATE, only_missing=only_missing)


async def keep_up(engine: RAGCacheEngine) -> None:
    await engine.aforget(["tides"])
    await engine.asnapshot()
    await engine.aclear_cache()


async def talk(engine: RAGCacheEngine) -> None:
    chat = pytest.importorskip("ragcache_integrations.langchain").ChatRAGCache(engine=engine)
    await chat.ainvoke("Why?")
    await chat.bind_tools([TOOL]).ainvoke("Why?")


async def talk_to_llamaindex(engine: RAGCacheEngine) -> None:
    made = pytest.importorskip("ragcache_integrations.llamaindex").RAGCacheLLM(engine=engine)
    chat = pytest.importorskip("llama_index.core.llms").ChatMessage
    await made.achat([chat(role="user", content="Why?")])


async def search(engine: RAGCacheEngine) -> None:
    ours = pytest.importorskip("ragcache_integrations.langchain")
    models = pytest.importorskip("langchain_core.embeddings")
    model = models.DeterministicFakeEmbedding(size=8)
    store = ours.FaissVectorStore.from_texts([TIDES.text], model)
    retriever = ours.RAGCacheRetriever.from_vectorstore(store, engine=engine, template=TEMPLATE)
    assert await retriever.ainvoke("Why?")
    await retriever.awarm()


async def search_llamaindex(engine: RAGCacheEngine) -> None:
    ours = pytest.importorskip("ragcache_integrations.llamaindex")
    core = pytest.importorskip("llama_index.core")
    faiss = pytest.importorskip("faiss")
    stores = pytest.importorskip("llama_index.vector_stores.faiss")
    index = core.VectorStoreIndex.from_documents(
        [core.Document(text=TIDES.text)],
        storage_context=core.StorageContext.from_defaults(
            vector_store=stores.FaissVectorStore(faiss_index=faiss.IndexFlatL2(8))
        ),
        embed_model=core.MockEmbedding(embed_dim=8),
    )
    assert await ours.RAGCacheRetriever.from_index(index, engine=engine).aretrieve("Why?")


@pytest.mark.parametrize("reuse", ["prefix", "anywhere"])
@pytest.mark.parametrize(
    "use", [ask_often, warm, keep_up, talk, talk_to_llamaindex, search, search_llamaindex]
)
def test_nothing_waits_for_the_threads_of_a_loop(
    engine_on: Callable[..., RAGCacheEngine], no_free_thread: None, use: Any, reuse: str
):
    ratio = 0.1 if reuse == "anywhere" else None
    backend = MemoryBackend(recompute_ratio=ratio)
    engine = engine_on(backend, reuse=reuse, recompute_ratio=ratio, speculation="on")
    asyncio.run(asyncio.wait_for(use(engine), SOON_S))


class SlowTokenizer(MemoryBackend):
    """Its tokenizer waits for an event; None: it does not."""

    waits_for: threading.Event | None = None

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        if self.waits_for:
            self.waits_for.wait()
        return super().tokenize(text, add_special_tokens)


def test_a_prompt_that_is_not_prepared_in_time_is_told_so_by_name(
    engine_on: Callable[..., RAGCacheEngine],
):
    backend = SlowTokenizer()
    engine = engine_on(backend, request_timeout_s=0.2)
    with hanging() as backend.waits_for:

        async def ask_many() -> list[Any]:
            asking = (engine.agenerate("Why?") for _ in range(20))
            return await asyncio.gather(*asking, return_exceptions=True)

        heard = asyncio.run(ask_many())
    assert [type(one) for one in heard] == [RequestTimedOut] * 20
    assert "preparing a prompt took more than 0.2 s" in str(heard[0])


def test_a_template_of_the_caller_that_hangs_delays_no_answer_for_long(
    engine_on: Callable[..., RAGCacheEngine], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ragcache_engine.requests.runner.LEARN_S", 0.05)
    engine = engine_on(MemoryBackend(), speculation="on")
    with hanging() as event:

        def template(question: str, documents: Sequence[Document]) -> str:
            event.wait()
            return ""

        for number in range(12):
            assert ask(engine, f"Why {number}?", template=template)


def test_a_search_that_cannot_begin_is_told_so_by_name(
    engine_on: Callable[..., RAGCacheEngine], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ragcache_engine.requests.engine_threads.SEARCHED_AT_ONCE", 2)
    engine = engine_on(MemoryBackend(), request_timeout_s=0.2)
    with hanging() as event:

        async def search_thrice() -> None:
            running = [asyncio.create_task(engine.threads.search(event.wait)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(RequestTimedOut, match="2 searches"):
                await engine.threads.search(lambda: None)
            await engine.agenerate("Why?", options=TWELVE)  # another kind of work
            event.set()
            assert await asyncio.gather(*running) == [True, True], "they may take what they take"

        asyncio.run(search_thrice())


class Restarting(MemoryBackend):
    """Dies once it is told to, and comes up when it may."""

    def __init__(self, may_start: threading.Event) -> None:
        super().__init__(fault=self._die)
        self._may_start = may_start
        self.is_dying = False
        self.starts = 0

    async def start(self) -> Any:
        self.starts += 1
        while self.starts > 1 and not self._may_start.is_set():
            await asyncio.sleep(0.01)
        self.is_dying = False
        return await super().start()

    def _die(self, step: int) -> None:
        if self.is_dying:
            raise EngineDied("killed")


def test_no_thread_waits_for_a_model_that_starts_again():
    with hanging() as may_start:
        backend = Restarting(may_start)

        async def ask_while_it_starts(engine: RAGCacheEngine) -> None:
            backend.is_dying = True
            first = asyncio.create_task(engine.agenerate("First?"))
            while backend.starts < 2:
                await asyncio.sleep(0.01)
            before = threading.active_count()
            asking = [asyncio.create_task(engine.agenerate(f"Q {n}?")) for n in range(40)]
            await asyncio.sleep(0.1)
            assert threading.active_count() <= before  # others may end
            may_start.set()
            assert len(await asyncio.gather(first, *asking)) == 41

        with RAGCacheEngine(EngineConfig(backend="memory"), backend=backend) as engine:
            asyncio.run(asyncio.wait_for(ask_while_it_starts(engine), SOON_S))


@pytest.mark.parametrize("use", [ask_often, talk])
def test_nor_does_a_server_wait_for_them(
    served_engine: RAGCacheEngine, no_free_thread: None, use: Any
):
    asyncio.run(asyncio.wait_for(use(served_engine), SOON_S))
    assert served_engine.tokenize("Why?").token_ids
