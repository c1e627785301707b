"""What becomes of a request whose caller leaves, whose task is cancelled, or whose engine is closed."""

import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from waiting import eventually

from ragcache_engine import EngineClosed
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

QUESTION = "Why is the sky blue?"
pytestmark = pytest.mark.parametrize("model", [RAGCacheLLM, ChatRAGCache])


class KeepsErrors(BaseCallbackHandler):
    """Keeps the errors that it is given, and so the frames of the stream."""

    def __init__(self):
        self.errors = []

    def on_llm_error(self, error, **kwargs):
        self.errors.append(error)


def test_leaving_a_stream_early_cancels_the_request(model, endless):
    heard = KeepsErrors()
    for _ in model(engine=endless).stream(QUESTION, {"callbacks": [heard]}):
        break
    assert eventually(lambda: endless.stats().cancelled == 1)
    assert endless.stats().running == 0


def test_leaving_an_async_stream_early_cancels_the_request(model, endless):
    heard = KeepsErrors()

    async def leave():
        stream = model(engine=endless).astream(QUESTION, {"callbacks": [heard]})
        async for _ in stream:
            break
        await stream.aclose()
        return await asyncio.to_thread(eventually, lambda: endless.stats().cancelled == 1)

    assert asyncio.run(leave())


def test_cancelling_the_task_cancels_all_of_its_batch(model, endless):
    async def cancel():
        task = asyncio.create_task(model(engine=endless).abatch([QUESTION, "Two?"]))
        while endless.stats().running < 2:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(eventually, lambda: endless.stats().cancelled == 2)

    assert asyncio.run(cancel())


def test_a_closed_engine_is_named(model, engine):
    heard = KeepsErrors()
    engine.close()
    with pytest.raises(EngineClosed):
        model(engine=engine).invoke(QUESTION, {"callbacks": [heard]})
    assert isinstance(heard.errors[0], EngineClosed)
