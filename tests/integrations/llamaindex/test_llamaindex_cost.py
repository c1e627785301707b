"""Where the cost of an answer stands for agents and query engines."""

import asyncio

import pytest
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever, measure_cost

QUESTION = "Why is the sky blue?"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def llm(engine):
    return RAGCacheLLM(engine=engine, temperature=0)


async def collect(stream):
    return [response async for response in await stream]


def test_an_agent_passes_the_cost_on(llm):
    async def ask():
        handler = FunctionAgent(tools=[add], llm=llm).run(QUESTION)
        events = [event async for event in handler.stream_events()]
        return [event for event in events if isinstance(event, AgentStream)], await handler

    streamed, output = asyncio.run(ask())
    for raw in (streamed[-1].raw, output.raw):
        assert raw["usage"]["completion_tokens"] == 9
        assert raw["usage"]["cached_tokens"] == 0
        assert raw["ttft_s"] > 0
        assert raw["document_ids"] == []
    assert "usage" not in output.response.additional_kwargs


@pytest.mark.parametrize("way", ["query", "aquery", "stream"])
def test_the_cost_of_a_query_is_that_of_all_its_answers(index, engine, llm, way):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    queries = RetrieverQueryEngine.from_args(
        retriever, llm=llm, response_mode="refine", streaming=way == "stream"
    )
    with measure_cost() as cost:
        if way == "aquery":
            asyncio.run(queries.aquery(QUESTION))
        else:
            str(queries.query(QUESTION))
    stats = engine.stats()
    assert len(cost.answers) == 3
    assert cost.prompt_tokens == stats.prompt_tokens
    assert cost.cached_tokens == sum(usage.cached.total for usage in cost.answers)
    assert cost.ttft_s == cost.answers[0].ttft_s > 0


def test_every_way_of_asking_counts_once(llm):
    with measure_cost() as cost:
        assert cost.ttft_s is None
        messages = [ChatMessage(QUESTION)]
        llm.complete(QUESTION)
        list(llm.stream_complete(QUESTION))
        llm.chat(messages)
        list(llm.stream_chat(messages))
        asyncio.run(llm.acomplete(QUESTION))
        asyncio.run(collect(llm.astream_complete(QUESTION)))
        asyncio.run(llm.achat(messages))
        asyncio.run(collect(llm.astream_chat(messages)))
    llm.complete(QUESTION)
    assert len(cost.answers) == 8
    assert cost.completion_tokens == 8 * 9


def test_queries_at_the_same_time_are_told_apart(llm):
    async def ask(times):
        with measure_cost() as cost:
            for _ in range(times):
                await llm.acomplete(QUESTION)
        return len(cost.answers)

    async def ask_all():
        return await asyncio.gather(*map(ask, (1, 2, 3)))

    assert asyncio.run(ask_all()) == [1, 2, 3]
