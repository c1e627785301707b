"""A reader who leaves stops the engine, however many layers are between them."""

import asyncio

import pytest
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from pydantic import BaseModel
from waiting import eventually

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why does the sky look blue and not violet?"


class Story(BaseModel):
    text: str


@pytest.fixture
def llm(endless):
    return RAGCacheLLM(engine=endless, temperature=0)


@pytest.fixture
def retriever(index, endless):
    return RAGCacheRetriever.from_index(index, engine=endless, similarity_top_k=2)


@pytest.fixture
def is_stopped(endless):
    """() -> whether the one running request is cancelled within 5 s."""

    def is_stopped():
        eventually(lambda: endless.stats().cancelled)
        return endless.stats().cancelled == 1 and endless.stats().running == 0

    return is_stopped


@pytest.mark.parametrize("is_chat_model", [False, True])
@pytest.mark.parametrize("mode", ["compact", "tree_summarize", "simple_summarize", "generation"])
def test_closing_the_stream_of_a_query_engine_stops_the_engine(
    retriever, endless, is_stopped, mode, is_chat_model
):
    llm = RAGCacheLLM(engine=endless, temperature=0, is_chat_model=is_chat_model)
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True, response_mode=mode)
    tokens = queries.query(QUESTION).response_gen
    assert next(tokens)
    tokens.close()
    assert is_stopped()


def test_dropping_the_response_of_a_query_engine_stops_the_engine(retriever, llm, is_stopped):
    response = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True).query(QUESTION)
    assert next(response.response_gen)
    del response
    assert is_stopped()


def test_closing_an_async_stream_of_a_query_engine_stops_the_engine(retriever, llm, is_stopped):
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)

    async def leave():
        response = await queries.aquery(QUESTION)
        tokens = response.async_response_gen()
        assert await anext(tokens)
        await tokens.aclose()
        del response, tokens
        return await asyncio.to_thread(is_stopped)

    assert asyncio.run(leave())


async def begun(engine):
    while engine.stats().running < 1:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_the_task_of_a_query_stops_the_engine(
    retriever, llm, endless, is_stopped, streaming
):
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=streaming)

    async def ask():
        response = await queries.aquery(QUESTION)
        return [token async for token in response.async_response_gen()]

    async def cancel():
        task = asyncio.create_task(ask())
        await begun(endless)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(is_stopped)

    assert asyncio.run(cancel())


@pytest.mark.parametrize("is_chat_model", [False, True])
def test_cancelling_the_task_of_a_chat_stops_the_engine(
    retriever, endless, is_stopped, is_chat_model
):
    llm = RAGCacheLLM(engine=endless, is_chat_model=is_chat_model)
    chat = ContextChatEngine.from_defaults(retriever, llm=llm)

    async def cancel():
        task = asyncio.create_task(chat.achat(QUESTION))
        await begun(endless)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(is_stopped)

    assert asyncio.run(cancel())


def test_leaving_a_structured_stream_stops_the_engine(llm, is_stopped):
    stream = llm.stream_structured_predict(
        Story, PromptTemplate("Tell a story."), llm_kwargs={"guide": None}
    )
    next(stream)
    stream.close()
    assert is_stopped()


def test_a_timeout_stops_the_engine(llm, endless, is_stopped):
    async def wait():
        async def expire_once_begun(limit):
            await begun(endless)
            limit.reschedule(asyncio.get_running_loop().time())

        async with asyncio.timeout(None) as limit:
            expiring = asyncio.create_task(expire_once_begun(limit))
            await llm.acomplete(QUESTION)
        await expiring

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    assert is_stopped()


def test_a_client_that_is_gone_stops_the_engine(llm, is_stopped):
    """As in a web server, which cancels the task that writes the response."""

    async def respond(written):
        async for response in await llm.astream_complete(QUESTION):
            written.append(response.delta)

    async def serve():
        written = []
        task = asyncio.create_task(respond(written))
        while not written:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(is_stopped)

    assert asyncio.run(serve())
