import asyncio

import llama_index.core
import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.callbacks.schema import EventPayload
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import TextNode

from ragcache_engine import (
    AnswerCutShort,
    BadRequest,
    InvalidArgument,
    KeyRefused,
    ModelNotFound,
    NoToolCall,
    PromptTooLong,
    RAGCacheEngine,
)
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why does the sky look blue and not violet?"


@pytest.fixture
def trace(monkeypatch):
    handler = LlamaDebugHandler(print_trace_on_end=False)
    # A query engine gives its LLM the callback manager of Settings.
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager([handler]))
    return handler


@pytest.fixture
def costs(trace):
    """What each answer so far cost."""
    return lambda: [
        end.payload[EventPayload.COMPLETION].additional_kwargs
        for _, end in trace.get_event_pairs(CBEventType.LLM)
    ]


@pytest.fixture
def make_query_engine(index, engine, trace):
    def make(top_k=2, **options):
        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=top_k)
        llm = RAGCacheLLM(engine=engine, temperature=0)
        return RetrieverQueryEngine.from_args(retriever, llm=llm, **options)

    return make


async def read(query_engine):
    response = await query_engine.aquery(QUESTION)
    return "".join([token async for token in response.async_response_gen()])


WAYS = {
    "query": (False, lambda queries: str(queries.query(QUESTION))),
    "aquery": (False, lambda queries: str(asyncio.run(queries.aquery(QUESTION)))),
    "stream": (True, lambda queries: "".join(queries.query(QUESTION).response_gen)),
    "astream": (True, lambda queries: asyncio.run(read(queries))),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_query_is_answered_and_its_nodes_are_recognised(make_query_engine, index, costs, way):
    streaming, ask = WAYS[way]
    assert ask(make_query_engine(streaming=streaming)).startswith("You asked: ")
    stock = index.as_retriever(similarity_top_k=2).retrieve(QUESTION)
    assert costs()[0]["document_ids"] == [found.node.node_id for found in stock]


@pytest.mark.parametrize("way", WAYS)
def test_the_second_time_the_nodes_come_from_the_cache(make_query_engine, costs, way):
    streaming, ask = WAYS[way]
    queries = make_query_engine(streaming=streaming)
    ask(queries)
    ask(queries)
    first, second = costs()
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] > 48


@pytest.mark.parametrize(
    "mode",
    [
        ResponseMode.COMPACT,
        ResponseMode.REFINE,
        ResponseMode.TREE_SUMMARIZE,
        ResponseMode.ACCUMULATE,
    ],
)
def test_every_common_synthesizer_writes_nodes_the_engine_recognises(
    make_query_engine, costs, mode
):
    queries = make_query_engine(top_k=3, response_mode=mode)
    found = {scored.node.node_id for scored in queries.retriever.retrieve(QUESTION)}
    queries.query(QUESTION)
    assert {name for cost in costs() for name in cost["document_ids"]} == found


class Changed(BaseNodePostprocessor):
    """A postprocessor that applies `change` to the list of nodes."""

    change: object

    def _postprocess_nodes(self, nodes, query_bundle=None):
        return self.change(nodes)


@pytest.mark.parametrize(
    "change",
    [
        lambda nodes: nodes[1:],
        lambda nodes: nodes[::-1],
        lambda nodes: [nodes[2], nodes[0]],
    ],
    ids=["dropped", "turned round", "both"],
)
def test_nodes_that_are_dropped_or_reordered_are_recognised_where_they_stand(
    make_query_engine, index, costs, change
):
    queries = make_query_engine(top_k=3, node_postprocessors=[Changed(change=change)])
    left = change(index.as_retriever(similarity_top_k=3).retrieve(QUESTION))
    queries.query(QUESTION)
    queries.query(QUESTION)
    first, second = costs()
    wanted = [found.node.node_id for found in left]
    assert first["document_ids"] == second["document_ids"] == wanted
    assert second["cached_tokens"] > 48


def test_the_prompt_is_the_one_the_stock_retriever_leads_to(
    make_query_engine, index, engine, recorded
):
    make_query_engine().query(QUESTION)
    llm = RAGCacheLLM(engine=engine, temperature=0)
    stock = index.as_retriever(similarity_top_k=2)
    RetrieverQueryEngine.from_args(stock, llm=llm).query(QUESTION)
    assert recorded[0] == recorded[1]


def test_many_questions_at_once_each_recognise_their_own_nodes(
    make_query_engine, index, corpus, costs
):
    questions = [" ".join(text.split()[:9]) + "?" for text in corpus.values()]
    queries, stock = make_query_engine(), index.as_retriever(similarity_top_k=2)

    async def ask_all():
        await asyncio.gather(*(queries.aquery(question) for question in questions))

    asyncio.run(ask_all())
    expected = [[found.node.node_id for found in stock.retrieve(q)] for q in questions]
    assert sorted(cost["document_ids"] for cost in costs()) == sorted(expected)


@pytest.mark.parametrize("way", ["by Settings", "by the helper"])
def test_twenty_long_nodes_are_summarized_within_the_models_context(
    make_index, make_engine, monkeypatch, way
):
    # A tokenizer that counts fewer tokens than the model's, as the default one of LlamaIndex may.
    monkeypatch.setattr(llama_index.core, "global_tokenizer", lambda text: text.split()[::3])
    backend = MemoryBackend(context_tokens=1024)
    engine = make_engine(backend)
    text = "the sea is wide and the moon is far and the sand is warm here " * 9
    index = make_index(nodes=[TextNode(text=f"{number} {text}") for number in range(20)])
    llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=64)
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=20)

    def ask(**options):
        synthesizer = get_response_synthesizer(
            llm=llm, response_mode=ResponseMode.TREE_SUMMARIZE, **options
        )
        return RetrieverQueryEngine(retriever, response_synthesizer=synthesizer).query(QUESTION)

    with pytest.raises(PromptTooLong, match=r"Settings\.tokenizer = llm\.tokenize"):
        ask()
    if way == "by Settings":
        Settings.tokenizer = llm.tokenize
        assert ask().response
    else:
        assert ask(prompt_helper=llm.prompt_helper()).response


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize", "simple_summarize"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong("shorter"),
        AnswerCutShort("longer"),
        NoToolCall("words"),
        KeyRefused("another key"),
        InvalidArgument("another value"),
        ModelNotFound("another model"),
    ],
    ids=repr,
)
def test_no_response_mode_makes_an_empty_response_of_an_error(
    make_query_engine, monkeypatch, mode, way, error
):
    def fail(self, *args, **kwargs):
        raise error

    for ask in ("generate", "agenerate", "stream", "astream"):
        monkeypatch.setattr(RAGCacheEngine, ask, fail)
    streaming, ask = WAYS[way]
    queries = make_query_engine(response_mode=mode, streaming=streaming)
    kind = BadRequest if isinstance(error, ValueError) else type(error)
    with pytest.raises(kind, match=str(error)):
        ask(queries)
