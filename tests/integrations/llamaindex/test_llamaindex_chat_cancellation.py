"""Whoever leaves the stream of a chat engine stops the engine, and waits for nothing."""

import asyncio
import threading

import pytest
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from waiting import eventually

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

TOKENS_BEFORE_STALL = 6
QUESTION = "Why does the sky look blue and not violet?"
REPLY = " ".join(f"part {n}" for n in range(60))


def condense_question(retriever, llm):
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)
    return CondenseQuestionChatEngine.from_defaults(query_engine=queries, llm=llm)


CHATS = {
    "simple": lambda retriever, llm: SimpleChatEngine.from_defaults(llm=llm),
    "context": lambda retriever, llm: ContextChatEngine.from_defaults(retriever, llm=llm),
    "condense question": condense_question,
    "condense plus context": lambda retriever, llm: CondensePlusContextChatEngine.from_defaults(
        retriever, llm=llm
    ),
}


@pytest.fixture(params=[False, True], ids=["text", "chat model"])
def is_chat_model(request):
    return request.param


@pytest.fixture(params=CHATS)
def make_chat(request, index, is_chat_model):
    """engine -> a chat engine on it."""

    def make(engine):
        return CHATS[request.param](
            RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=2),
            RAGCacheLLM(engine=engine, temperature=0, is_chat_model=is_chat_model),
        )

    return make


@pytest.fixture
def chat(make_chat, endless):
    return make_chat(endless)


@pytest.fixture
def talkative(make_chat, make_engine):
    return make_chat(make_engine(MemoryBackend(lambda prompt: REPLY)))


@pytest.fixture
def is_stopped(endless):
    """() -> whether the one running request is cancelled within 5 s."""

    def is_stopped():
        def is_idle():
            return endless.stats().cancelled == 1 and endless.stats().running == 0

        return eventually(is_idle)

    return is_stopped


@pytest.fixture
def returns(endless):
    """call -> whether it returns within 5 s. If it does not, closes the engine, to end its thread."""

    def returns(call):
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(5)
        try:
            return not thread.is_alive()
        finally:
            if thread.is_alive():
                endless.close()

    return returns


def test_closing_the_stream_of_a_chat_engine_stops_the_engine(chat, returns, is_stopped):
    tokens = chat.stream_chat(QUESTION).response_gen
    assert next(tokens)
    assert returns(tokens.close)
    assert is_stopped()


def test_breaking_out_of_the_stream_of_a_chat_engine_stops_the_engine(chat, returns, is_stopped):
    def read_one():
        for _ in chat.stream_chat(QUESTION).response_gen:
            break

    assert returns(read_one)
    assert is_stopped()


def test_an_interrupt_while_a_chat_engine_streams_stops_the_engine(chat, returns, is_stopped):
    tokens = chat.stream_chat(QUESTION).response_gen
    assert next(tokens)

    def interrupt():
        with pytest.raises(KeyboardInterrupt):
            tokens.throw(KeyboardInterrupt)

    assert returns(interrupt)
    assert is_stopped()


def test_a_chat_that_is_left_remembers_the_part_that_was_made(chat, returns):
    response = chat.stream_chat(QUESTION)
    tokens = response.response_gen
    first = next(tokens)
    assert returns(tokens.close)
    question, answer = chat.chat_history
    assert question.content == QUESTION
    assert answer.content.startswith(first.strip())
    assert response.exception is None


def aleave(chat, leave):
    """Read one token of a chat, and leave. Return whether that ended: within half a minute at most."""

    async def run():
        response = await chat.astream_chat(QUESTION)
        leaving = asyncio.create_task(leave(response))
        done, _ = await asyncio.wait({leaving}, timeout=30)
        return bool(done)

    return asyncio.run(run())


async def close_early(response):
    tokens = response.async_response_gen()
    assert await anext(tokens)
    await tokens.aclose()
    assert response.is_done


async def break_out(response):
    async for _ in response.async_response_gen():
        break
    await history_written(response)


async def be_cancelled(response):
    """As in a web server, which cancels the task that writes the response, until it ends."""
    got = []

    async def read():
        async for token in response.async_response_gen():
            got.append(token)

    reading = asyncio.create_task(read())
    # Python 3.11 loses a cancellation that comes together with a token.
    while len(got) < TOKENS_BEFORE_STALL:
        await asyncio.sleep(0.001)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await reading
    await history_written(response)


async def history_written(response):
    while not response.is_done:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("leave", [close_early, break_out, be_cancelled])
def test_leaving_an_async_stream_of_a_chat_engine_stops_the_engine(chat, is_stopped, leave):
    stopped = []

    async def leave_and_look(response):
        await leave(response)
        stopped.append(await asyncio.to_thread(is_stopped))

    assert aleave(chat, leave_and_look)
    assert stopped == [True]


@pytest.mark.parametrize("leave", [close_early, break_out, be_cancelled])
def test_an_async_chat_that_is_left_remembers_the_part_that_was_made(chat, leave):
    assert aleave(chat, leave)
    question, answer = chat.chat_history
    assert question.content == QUESTION
    assert answer.content.startswith("and")


def test_who_reads_a_chat_to_its_end_gets_the_whole_answer(talkative):
    assert "".join(talkative.stream_chat(QUESTION).response_gen) == REPLY
    assert talkative.chat_history[-1].content == REPLY


def test_who_reads_an_async_chat_to_its_end_gets_the_whole_answer(talkative):
    async def read():
        response = await talkative.astream_chat(QUESTION)
        return "".join([token async for token in response.async_response_gen()])

    assert asyncio.run(read()) == REPLY
    assert talkative.chat_history[-1].content == REPLY


def test_who_waits_for_the_history_of_a_chat_gets_the_whole_answer(talkative):
    response = talkative.stream_chat(QUESTION)
    response.write_response_to_history_thread.join()
    assert not response.write_response_to_history_thread.is_alive()
    assert talkative.chat_history[-1].content == REPLY


def test_who_waits_for_the_history_of_an_async_chat_gets_the_whole_answer(talkative):
    async def wait():
        response = await talkative.astream_chat(QUESTION)
        await asyncio.sleep(0)
        await response.awrite_response_to_history_task
        assert response.awrite_response_to_history_task.done()

    asyncio.run(wait())
    assert talkative.chat_history[-1].content == REPLY
