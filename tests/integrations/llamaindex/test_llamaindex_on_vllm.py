"""The query engine on the real model: what an engine without a model cannot show."""

import asyncio
import time

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

pytestmark = pytest.mark.vllm

QUESTION = "Why does the sky look blue and not violet?"


def as_chat(prompt: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def test_the_second_query_on_a_node_reuses_it_and_answers_as_without_a_cache(index, model_engine):
    llm = RAGCacheLLM(
        engine=model_engine, temperature=0, max_tokens=16, completion_to_prompt=as_chat
    )
    retriever = RAGCacheRetriever.from_index(index, engine=model_engine, similarity_top_k=3)
    whole = RetrieverQueryEngine.from_args(retriever, llm=llm)
    streamed = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)
    model_engine.clear_cache()
    cold = str(whole.query(QUESTION))
    before = model_engine.stats()
    warm = "".join(streamed.query(QUESTION).response_gen)
    after = model_engine.stats()
    assert cold.strip()
    assert warm == cold
    assert after.cached.total - before.cached.total > 64


def is_idle(engine, cancelled):
    """Wait until nothing runs and this many requests were cancelled; return False after 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        stats = engine.stats()
        if stats.cancelled >= cancelled and stats.running == 0:
            return True
        time.sleep(0.01)
    return False


def test_a_reader_who_leaves_stops_the_model(model_engine):
    llm = RAGCacheLLM(engine=model_engine, temperature=0, max_tokens=3000, ignore_eos=True)
    before = model_engine.stats()

    async def leave():
        stream = await llm.astream_complete(QUESTION)
        await anext(stream)
        await stream.aclose()

    async def cancel():
        task = asyncio.create_task(llm.achat([ChatMessage(QUESTION)]))
        while model_engine.stats().running < 1:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    stream = llm.stream_complete(QUESTION)
    next(stream)
    stream.close()
    assert is_idle(model_engine, before.cancelled + 1)
    asyncio.run(leave())
    assert is_idle(model_engine, before.cancelled + 2)
    asyncio.run(cancel())
    assert is_idle(model_engine, before.cancelled + 3)
    assert model_engine.stats().finished == before.finished
