"""A reader who leaves a chain in the middle of an answer also stops the model.

The answers would take minutes, so none of them ends by itself during a test.
"""

import asyncio
import gc
import threading

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough

from ragcache_integrations.langchain import RAGCacheLLM

pytestmark = pytest.mark.vllm

PROMPT = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
WAIT_S = 20.0


def joined(documents):
    return "\n\n".join(document.page_content for document in documents)


@pytest.fixture
def chain(swap):
    llm = RAGCacheLLM(engine=swap.engine, temperature=0, max_new_tokens=3000, ignore_eos=True)
    inputs = {"context": swap.ours.retriever | joined, "question": RunnablePassthrough()}
    return inputs | PROMPT | llm | StrOutputParser()


@pytest.fixture
def is_cancelled(model_engine):
    """Wait until nothing runs; return how many requests were cancelled since the test began."""
    before = model_engine.stats()
    assert before.running == 0

    def wait():
        waiting, after = threading.Event(), model_engine.stats()
        for _ in range(int(WAIT_S / 0.01)):
            after = model_engine.stats()
            if not after.running:
                break
            waiting.wait(0.01)
        assert after.running == 0
        assert after.finished == before.finished
        return after.cancelled - before.cancelled

    return wait


def test_closing_a_stream_stops_the_model(chain, questions, is_cancelled):
    stream = chain.stream(questions[0])
    next(stream)
    stream.close()
    assert is_cancelled() == 1


def test_a_stream_that_nobody_holds_any_more_stops_the_model(chain, questions, is_cancelled):
    for _ in chain.stream(questions[0]):
        break
    gc.collect()
    assert is_cancelled() == 1


def test_closing_an_async_stream_stops_the_model(chain, questions, is_cancelled):
    async def leave():
        stream = chain.astream(questions[0])
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    assert is_cancelled() == 1


@pytest.mark.parametrize("way", ["ainvoke", "astream", "abatch", "astream_events"])
def test_cancelling_the_task_stops_the_model(chain, questions, is_cancelled, model_engine, way):
    async def ask():
        if way == "ainvoke":
            await chain.ainvoke(questions[0])
        elif way == "abatch":
            await chain.abatch(questions[:2])
        elif way == "astream":
            async for _ in chain.astream(questions[0]):
                pass
        else:
            async for _ in chain.astream_events(questions[0], version="v2"):
                pass

    async def cancel():
        asking = asyncio.create_task(ask())
        while model_engine.stats().running < (2 if way == "abatch" else 1):
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancel())
    assert is_cancelled() == (2 if way == "abatch" else 1)


def test_a_timeout_around_a_chain_stops_the_model(chain, questions, is_cancelled):
    async def ask():
        async with asyncio.timeout(1.0):
            await chain.ainvoke(questions[0])

    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    assert is_cancelled() == 1


def test_a_client_that_goes_away_stops_the_model(chain, questions, is_cancelled):
    """A web application streams the chain; the server tells it that the client is gone."""
    responses = pytest.importorskip("starlette.responses")

    async def serve():
        response = responses.StreamingResponse(chain.astream(questions[0]))
        some_sent = asyncio.Event()

        async def receive():
            await some_sent.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message.get("body"):
                some_sent.set()

        await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    asyncio.run(serve())
    assert is_cancelled() == 1


def test_a_client_whose_socket_is_gone_stops_the_model(chain, questions, is_cancelled):
    """A plain server writes pieces to a socket, and notices when it writes that the client is gone."""

    async def serve():
        gone = asyncio.get_running_loop().create_future()

        async def answer(reader, writer):
            try:
                async for piece in chain.astream(questions[0]):
                    writer.write(piece.encode())
                    await writer.drain()
            except ConnectionError:
                gone.set_result(None)
            finally:
                writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read(1)
            writer.transport.abort()
            await gone

    asyncio.run(serve())
    assert is_cancelled() == 1


def test_whoever_asks_next_is_answered_as_if_nobody_had_left(chain, swap, questions, is_cancelled):
    inputs = {"context": swap.ours.retriever | joined, "question": RunnablePassthrough()}
    expected = (inputs | PROMPT | swap.stock.llm).invoke(questions[0])
    stream = chain.stream(questions[0])
    next(stream)
    stream.close()
    assert is_cancelled() == 1
    assert (inputs | PROMPT | swap.ours.llm).invoke(questions[0]) == expected
