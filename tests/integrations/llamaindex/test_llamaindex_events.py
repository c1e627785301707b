"""LlamaIndex's instrumentation and callbacks are told what happened and what it cost."""

import asyncio

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.callbacks.schema import EventPayload
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
    LLMCompletionStartEvent,
    LLMPredictEndEvent,
    LLMPredictStartEvent,
    LLMStructuredPredictEndEvent,
    LLMStructuredPredictStartEvent,
)
from llama_index.core.instrumentation.events.retrieval import (
    RetrievalEndEvent,
    RetrievalStartEvent,
)
from llama_index.core.prompts import PromptTemplate
from pydantic import BaseModel, PrivateAttr

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

PROMPT = "Why is the sky blue?"
MESSAGES = [ChatMessage("Why is the sky blue?")]


class Ears(BaseEventHandler):
    _heard: list = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls):
        return "Ears"

    def handle(self, event, **kwargs):
        self._heard.append(event)

    def of(self, *kinds):
        return [event for event in self._heard if isinstance(event, kinds)]


@pytest.fixture
def ears():
    root, ears = get_dispatcher(), Ears()
    root.add_event_handler(ears)
    yield ears
    root.event_handlers.remove(ears)


@pytest.fixture
def llm(engine):
    return RAGCacheLLM(engine=engine, temperature=0)


async def collect(stream):
    return [item async for item in await stream]


COMPLETING = {
    "complete": lambda llm: llm.complete(PROMPT),
    "acomplete": lambda llm: asyncio.run(llm.acomplete(PROMPT)),
    "stream": lambda llm: list(llm.stream_complete(PROMPT)),
    "astream": lambda llm: asyncio.run(collect(llm.astream_complete(PROMPT))),
}
CHATTING = {
    "chat": lambda llm: llm.chat(MESSAGES),
    "achat": lambda llm: asyncio.run(llm.achat(MESSAGES)),
    "stream": lambda llm: list(llm.stream_chat(MESSAGES)),
    "astream": lambda llm: asyncio.run(collect(llm.astream_chat(MESSAGES))),
}


@pytest.mark.parametrize("way", COMPLETING)
def test_a_completion_is_told_once_with_what_it_cost(llm, ears, way):
    COMPLETING[way](llm)
    (start,) = ears.of(LLMCompletionStartEvent)
    (end,) = ears.of(LLMCompletionEndEvent)
    assert start.prompt == PROMPT
    assert start.model_dict["class_name"] == "RAGCacheLLM"
    assert end.response.text == f"You asked: {PROMPT}"
    assert end.response.raw["usage"]["completion_tokens"] == 9
    assert "cached_tokens" in end.response.additional_kwargs
    assert bool(ears.of(LLMCompletionInProgressEvent)) == ("stream" in way)
    assert ears.of(LLMChatStartEvent, LLMChatEndEvent) == []


@pytest.mark.parametrize("way", CHATTING)
def test_a_chat_is_told_once_and_not_as_a_completion_too(llm, ears, way):
    CHATTING[way](llm)
    (start,) = ears.of(LLMChatStartEvent)
    (end,) = ears.of(LLMChatEndEvent)
    assert start.messages == MESSAGES
    assert end.response.message.content == f"You asked: {PROMPT}"
    assert end.response.raw["usage"]["completion_tokens"] == 9
    assert "cached_tokens" in end.response.additional_kwargs
    assert bool(ears.of(LLMChatInProgressEvent)) == ("stream" in way)
    assert ears.of(LLMCompletionStartEvent, LLMCompletionEndEvent) == []


def test_predictions_are_told(llm, ears):
    class Yes(BaseModel):
        yes: bool

    llm.predict(PromptTemplate(PROMPT))
    llm.structured_predict(Yes, PromptTemplate(PROMPT))
    assert len(ears.of(LLMPredictStartEvent)) == len(ears.of(LLMPredictEndEvent)) == 1
    assert ears.of(LLMStructuredPredictStartEvent)[0].output_cls is Yes
    assert ears.of(LLMStructuredPredictEndEvent)[0].output == Yes(yes=False)


@pytest.mark.parametrize(
    "ask",
    [
        lambda retriever: retriever.retrieve(PROMPT),
        lambda retriever: asyncio.run(retriever.aretrieve(PROMPT)),
    ],
)
def test_a_retrieval_is_told_once_however_many_stages_it_had(index, make_engine, ears, ask):
    engine = make_engine(MemoryBackend())
    trace = LlamaDebugHandler(print_trace_on_end=False)
    retriever = RAGCacheRetriever.from_index(
        index, engine=engine, callback_manager=CallbackManager([trace])
    )
    found = ask(retriever)
    (start,) = ears.of(RetrievalStartEvent)
    (end,) = ears.of(RetrievalEndEvent)
    assert (start.str_or_query_bundle, end.nodes) == (PROMPT, found)
    ((_, ended),) = trace.get_event_pairs(CBEventType.RETRIEVE)
    assert ended.payload[EventPayload.NODES] == found
