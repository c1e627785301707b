"""Query and chat engines of LlamaIndex's documentation, built stock, then accelerated in one call.

The accelerated engine gives the answer of the stock one on the same model, and the second time from the
cache. The stock engine answers as before, since `accelerate` changes nothing of it.
"""

import asyncio
from copy import copy

import pytest
from fixed_sub_questions import QUESTION, FixedSubQuestions
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.chat_engine import CondensePlusContextChatEngine, ContextChatEngine
from llama_index.core.postprocessor import LongContextReorder
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
)
from llama_index.core.response_synthesizers import TreeSummarize, get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import QueryEngineTool

from ragcache_integrations.llamaindex import accelerate, measure_cost

pytestmark = pytest.mark.vllm

TURNS = (QUESTION, "And why not green?")
TOKENS = 8


def tool_of(retriever, llm, mode="compact", description="What the world is like."):
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode)
    return QueryEngineTool.from_defaults(queries, name=mode, description=description)


def plain(faiss, other, llm):
    return RetrieverQueryEngine.from_args(faiss, llm=llm)


def over_another_store(faiss, other, llm):
    return RetrieverQueryEngine.from_args(
        other, llm=llm, response_mode="refine", node_postprocessors=[LongContextReorder()]
    )


def summary(faiss, other, llm):
    return RetrieverQueryEngine.from_args(other, llm=llm, response_mode="tree_summarize")


def citations(faiss, other, llm):
    return CitationQueryEngine(
        faiss,
        llm=llm,
        response_synthesizer=get_response_synthesizer(llm=llm, response_mode="compact"),
        citation_chunk_size=64,
        citation_chunk_overlap=0,
    )


def sub_questions(faiss, other, llm):
    return SubQuestionQueryEngine.from_defaults(
        [tool_of(faiss, llm)],
        llm=llm,
        question_gen=FixedSubQuestions(),
        response_synthesizer=get_response_synthesizer(llm=llm, response_mode="compact"),
        verbose=False,
    )


def router(faiss, other, llm):
    tools = [
        tool_of(faiss, llm, "compact", "Questions about the sky and its light."),
        tool_of(other, llm, "accumulate", "Kitchens."),
    ]
    selector = EmbeddingSingleSelector.from_defaults(embed_model=faiss._embed_model)
    return RouterQueryEngine(selector, tools, llm=llm, summarizer=TreeSummarize(llm=llm))


def fusion(faiss, other, llm):
    """Asks the LLM for another form of the question, searches both stores for both."""
    both = QueryFusionRetriever(
        [faiss, other], llm=llm, num_queries=2, similarity_top_k=3, use_async=False
    )
    return RetrieverQueryEngine.from_args(both, llm=llm)


QUERY_ENGINES = {
    "a retriever query engine": plain,
    "one over another store that refines": over_another_store,
    "a summary": summary,
    "citations": citations,
    "sub-questions": sub_questions,
    "a router": router,
    "a fusion of two stores": fusion,
}


@pytest.fixture
def retrievers(index, nodes, embeddings):
    """Stock ones: over Faiss, and over LlamaIndex's own store."""
    other = VectorStoreIndex(nodes, embed_model=embeddings)
    return [each.as_retriever(similarity_top_k=3) for each in (index, other)]


@pytest.fixture
def speed_up(vllm_engine):
    """Accelerates a component of which nothing may be left, with a cold cache."""

    def run(stock):
        reports = []
        accelerated = accelerate(stock, engine=vllm_engine, report=reports.append)
        assert reports[0].is_complete, str(reports[0])
        vllm_engine.clear_cache()
        return accelerated

    return run


def texts(response):
    """Return the texts of the nodes, because a query engine gives its own nodes random ids."""
    return [found.node.get_content() for found in response.source_nodes]


@pytest.mark.parametrize("kind", QUERY_ENGINES)
def test_a_stock_query_engine_answers_alike_when_accelerated_and_then_from_the_cache(
    kind, retrievers, stock_llm, speed_up, monkeypatch
):
    llm = stock_llm(TOKENS)
    monkeypatch.setattr(Settings, "_llm", llm)
    stock = QUERY_ENGINES[kind](*retrievers, llm)
    expected = stock.query(QUESTION)
    assert str(expected).strip()
    accelerated = speed_up(stock)
    with measure_cost() as cold:
        first = accelerated.query(QUESTION)
    with measure_cost() as warm:
        second = asyncio.run(accelerated.aquery(QUESTION))
    assert str(first) == str(second) == str(expected)
    assert texts(first) == texts(second) == texts(expected)
    assert warm.prompt_tokens == cold.prompt_tokens
    assert warm.cached_tokens > cold.cached_tokens
    if kind != "citations":  # it cuts the nodes anew; other tests may have retrieved such a piece
        assert any(usage.document_ids for usage in warm.answers)
    assert str(stock.query(QUESTION)) == str(expected)


CHATS = {
    "context": lambda retriever, llm: ContextChatEngine.from_defaults(retriever, llm=llm),
    "condense plus context": lambda retriever, llm: CondensePlusContextChatEngine.from_defaults(
        retriever, llm=llm
    ),
}


def converse(chat):
    return [str(chat.chat(asked)) for asked in TURNS]


@pytest.mark.parametrize("is_chat_model", [False, True])
@pytest.mark.parametrize("kind", CHATS)
def test_a_stock_chat_engine_answers_alike_when_accelerated_and_then_from_the_cache(
    kind, is_chat_model, retrievers, stock_llm, speed_up
):
    stock = CHATS[kind](retrievers[1], stock_llm(TOKENS, is_chat_model))
    accelerated = speed_up(stock)
    expected = converse(stock)
    with measure_cost() as cold:
        first = converse(accelerated)
    again = with_empty_memory(accelerated)
    with measure_cost() as warm:
        second = converse(again)
    assert first == second == expected
    assert warm.cached_tokens > cold.cached_tokens
    assert len(stock.chat_history) == len(accelerated.chat_history) == 2 * len(TURNS)


def with_empty_memory(chat):
    twin = copy(chat)
    twin._memory = type(chat._memory).from_defaults()
    return twin
