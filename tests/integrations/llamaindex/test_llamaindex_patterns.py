"""What people build on LlamaIndex, on the real model: the stock classes' answers, and cached tokens.

Each pattern is a function of a retriever and an LLM, so that only these two are swapped.
"""

import asyncio
from typing import Literal

import pytest
from fixed_sub_questions import OTHER, QUESTION, FixedSubQuestions
from llama_index.core import Settings
from llama_index.core.base.base_selector import (
    BaseSelector,
    SelectorResult,
    SingleSelection,
)
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.postprocessor import (
    LongContextReorder,
    MetadataReplacementPostProcessor,
    SimilarityPostprocessor,
)
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.response_synthesizers import (
    ResponseMode,
    TreeSummarize,
    get_response_synthesizer,
)
from llama_index.core.schema import QueryBundle
from llama_index.core.selectors import EmbeddingSingleSelector
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

pytestmark = pytest.mark.vllm

TURNS = (QUESTION, "And why not green?")
TOKENS = 8
ASKS_NOTHING = {"response mode no_text", "response mode context_only"}


def query_engine(**options):
    return lambda retriever, llm: RetrieverQueryEngine.from_args(retriever, llm=llm, **options)


def sub_questions(retriever, llm):
    tool = QueryEngineTool.from_defaults(
        query_engine=RetrieverQueryEngine.from_args(retriever, llm=llm),
        name="world",
        description="What the world is like.",
    )
    return SubQuestionQueryEngine.from_defaults(
        [tool],
        llm=llm,
        question_gen=FixedSubQuestions(),
        response_synthesizer=get_response_synthesizer(llm=llm, response_mode="compact"),
        verbose=False,
    )


def tools_of(retriever, llm):
    about = {"compact": "Questions about the sky and its light.", "accumulate": "Kitchens."}
    return [
        QueryEngineTool.from_defaults(
            RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode),
            name=mode,
            description=description,
        )
        for mode, description in about.items()
    ]


def router(retriever, llm):
    selector = EmbeddingSingleSelector.from_defaults(embed_model=retriever._embed_model)
    return RouterQueryEngine(
        selector, tools_of(retriever, llm), llm=llm, summarizer=TreeSummarize(llm=llm)
    )


class Choice(BaseModel):
    """One of the tools."""

    number: Literal[0, 1]


class GuidedSelector(BaseSelector):
    """Lets the model choose a tool, with only the tools as possible answers."""

    def __init__(self, llm):
        self.llm = llm

    def _select(self, choices, query):
        told = "\n".join(f"{n}: {choice.description}" for n, choice in enumerate(choices))
        prompt = PromptTemplate("{told}\nWhich number fits the question {query}?")
        chosen = self.llm.structured_predict(Choice, prompt, told=told, query=query.query_str)
        return SelectorResult(selections=[SingleSelection(index=chosen.number, reason="")])

    async def _aselect(self, choices, query):
        return await asyncio.to_thread(self._select, choices, query)

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass


class Misled(BaseQueryTransform):
    """Asks the index another question than the reader's."""

    def _run(self, query_bundle, metadata):
        return QueryBundle(query_bundle.query_str, custom_embedding_strs=[OTHER])

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass


def transformed(retriever, llm):
    return TransformQueryEngine(RetrieverQueryEngine.from_args(retriever, llm=llm), Misled())


def citations(retriever, llm):
    synthesizer = get_response_synthesizer(llm=llm, response_mode="compact")
    return CitationQueryEngine(
        retriever,
        llm=llm,
        response_synthesizer=synthesizer,
        citation_chunk_size=64,
        citation_chunk_overlap=0,
    )


class LastFirst(LongContextReorder):
    """Reverses the nodes, because any order must work."""

    def _postprocess_nodes(self, nodes, query_bundle=None):
        return nodes[::-1]


PATTERNS = {
    **{f"response mode {mode.value}": query_engine(response_mode=mode) for mode in ResponseMode},
    "nodes dropped": query_engine(
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=1.045)]
    ),
    "nodes for long contexts": query_engine(node_postprocessors=[LongContextReorder()]),
    "nodes turned round": query_engine(node_postprocessors=[LastFirst()]),
    "nodes replaced": query_engine(
        node_postprocessors=[MetadataReplacementPostProcessor(target_metadata_key="source")]
    ),
    "citations": citations,
    "sub-questions": sub_questions,
    "router": router,
    "another question for the index": transformed,
}


@pytest.fixture
def ours(model_engine):
    def make(is_chat_model=False):
        return RAGCacheLLM(
            engine=model_engine, temperature=0, max_tokens=TOKENS, is_chat_model=is_chat_model
        )

    return make


@pytest.fixture
def retrievers(index, model_engine):
    """(stock, ours)"""
    return (
        index.as_retriever(similarity_top_k=3),
        RAGCacheRetriever.from_index(index, engine=model_engine, similarity_top_k=3),
    )


@pytest.fixture
def cached_by(model_engine):
    """Runs a function; returns its result and the share of its prompt tokens that were cached."""

    def run(ask):
        before = model_engine.stats()
        answer = ask()
        after = model_engine.stats()
        prompts = after.prompt_tokens - before.prompt_tokens
        return answer, (after.cached.total - before.cached.total) / prompts if prompts else None

    return run


async def stream_answer(queries, question):
    response = await queries.aquery(question)
    return "".join([token async for token in response.async_response_gen()])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_query_engine_answers_as_stock_does_and_the_second_time_from_the_cache(
    pattern, ours, stock_llm, retrievers, cached_by, model_engine, monkeypatch
):
    def made(retriever, llm):
        monkeypatch.setattr(Settings, "_llm", llm)  # modes that ask the LLM nothing still take one
        return PATTERNS[pattern](retriever, llm)

    # Without nodes, the question is the whole prompt, which is shorter than a block of KV memory.
    question = QUESTION * 8 if "generation" in pattern else QUESTION
    expected = made(retrievers[0], stock_llm(TOKENS)).query(question)
    queries = made(retrievers[1], ours())
    model_engine.clear_cache()
    first, cold = cached_by(lambda: queries.query(question))
    second, warm = cached_by(lambda: asyncio.run(queries.aquery(question)))
    assert str(first) == str(second) == str(expected)
    assert texts(first) == texts(expected)
    if pattern in ASKS_NOTHING:
        assert cold is None
    else:
        assert str(first).strip()
        assert warm > max(cold, 0.4)


def texts(response):
    """Return the texts of the nodes, because a query engine gives its own nodes random ids."""
    return [found.node.get_content() for found in response.source_nodes]


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.TREE_SUMMARIZE])
def test_a_streaming_query_engine_answers_as_stock_does(
    mode, ours, stock_llm, retrievers, cached_by, model_engine
):
    make = query_engine(response_mode=mode, streaming=True)
    expected = "".join(make(retrievers[0], stock_llm(TOKENS)).query(QUESTION).response_gen)
    queries = make(retrievers[1], ours())
    model_engine.clear_cache()
    first, cold = cached_by(lambda: "".join(queries.query(QUESTION).response_gen))
    second, warm = cached_by(lambda: asyncio.run(stream_answer(queries, QUESTION)))
    assert first == second == expected
    assert warm > max(cold, 0.4)


def test_an_indexs_own_query_engine_answers_on_our_llm(index, ours, stock_llm):
    ask = {"similarity_top_k": 2, "response_mode": "compact"}
    expected = str(index.as_query_engine(llm=stock_llm(TOKENS), **ask).query(QUESTION))
    assert str(index.as_query_engine(llm=ours(), **ask).query(QUESTION)) == expected


def test_a_router_may_let_the_model_choose(ours, retrievers):
    llm = ours()
    tools = tools_of(retrievers[1], llm)
    guided = GuidedSelector(RAGCacheLLM(engine=llm.engine, temperature=0, max_tokens=24))
    response = RouterQueryEngine(guided, tools, llm=llm).query(QUESTION)
    chosen = tools[response.metadata["selector_result"].ind]
    assert str(response) == str(chosen.query_engine.query(QUESTION))


CHATS = {
    "context": lambda retriever, llm: ContextChatEngine.from_defaults(retriever, llm=llm),
    "condense_plus_context": lambda retriever, llm: CondensePlusContextChatEngine.from_defaults(
        retriever, llm=llm
    ),
    "simple": lambda _, llm: SimpleChatEngine.from_defaults(llm=llm),
}


def converse(chat):
    return [str(chat.chat(asked)) for asked in TURNS]


def converse_streaming(chat):
    return ["".join(chat.stream_chat(asked).response_gen) for asked in TURNS]


async def atalked(chat):
    return [str(await chat.achat(asked)) for asked in TURNS]


async def aconverse_streaming(chat):
    answers = []
    for asked in TURNS:
        response = await chat.astream_chat(asked)
        answers.append("".join([token async for token in response.async_response_gen()]))
    return answers


@pytest.mark.parametrize(
    ("kind", "is_chat_model"),
    [
        ("context", False),
        ("context", True),
        ("condense_plus_context", False),
        ("condense_plus_context", True),
        ("simple", True),
    ],
)
def test_a_chat_engine_answers_as_stock_does_and_the_second_time_from_the_cache(
    kind, is_chat_model, ours, stock_llm, retrievers, cached_by, model_engine
):
    make = CHATS[kind]
    expected = converse(make(retrievers[0], stock_llm(TOKENS, is_chat_model)))
    model_engine.clear_cache()
    llm = ours(is_chat_model)
    first, cold = cached_by(lambda: converse(make(retrievers[1], llm)))
    second, warm = cached_by(lambda: asyncio.run(atalked(make(retrievers[1], llm))))
    assert first == second == expected
    assert warm > cold


def test_a_chat_engine_streams_what_it_answers(ours, retrievers):
    """The chat engine strips white space from what it streams and remembers."""
    llm = ours(is_chat_model=True)

    def chat():
        return ContextChatEngine.from_defaults(retrievers[1], llm=llm)

    expected = [answer.strip() for answer in converse(chat())]
    assert [answer.strip() for answer in converse_streaming(chat())] == expected
    assert [answer.strip() for answer in asyncio.run(aconverse_streaming(chat()))] == expected
