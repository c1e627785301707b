"""What a model thinks comes as LangChain's reasoning blocks, beside the answer."""

import asyncio
import json

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory.words import split_words
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

THOUGHT, SAID = "They ask for a sum.", "It is 5."
BLOCKS = [{"type": "reasoning", "reasoning": THOUGHT}, {"type": "text", "text": SAID}]


class Sum(BaseModel):
    value: int


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def thinking(recording):
    """says -> (chat model, what reached its backend). Its replies are the thought and then `says`."""
    opened = []

    def make(says=SAID, **settings):
        backend = recording(lambda prompt: f"<think>{THOUGHT}</think>{says}")
        config = EngineConfig(backend="memory", reasoning_parser="qwen3")
        engine = RAGCacheEngine(config, backend=backend)
        opened.append(engine)
        return ChatRAGCache(engine=engine, temperature=0, **settings), backend.asked

    yield make
    for engine in opened:
        engine.close()


def joined(chunks):
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


async def all_of(chunks):
    return joined([chunk async for chunk in chunks])


WAYS = {
    "invoke": lambda chat: chat.invoke("2 and 3?"),
    "ainvoke": lambda chat: asyncio.run(chat.ainvoke("2 and 3?")),
    "stream": lambda chat: joined(list(chat.stream("2 and 3?"))),
    "astream": lambda chat: asyncio.run(all_of(chat.astream("2 and 3?"))),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask_gives_the_reasoning_as_a_block(thinking, way):
    chat, _ = thinking()
    message = WAYS[way](chat)
    assert message.content == message.text == SAID
    assert message.content_blocks == BLOCKS
    assert message.additional_kwargs == {"reasoning_content": THOUGHT}
    details = message.usage_metadata["output_token_details"]
    assert details == {"reasoning": len(split_words(THOUGHT))}


@pytest.mark.parametrize("way", WAYS)
def test_standard_contents_hold_it_too(thinking, way):
    chat, _ = thinking(output_version="v1")
    without_index = [
        {name: value for name, value in block.items() if name != "index"}
        for block in WAYS[way](chat).content
    ]
    assert without_index == BLOCKS


def test_a_stream_tells_the_reasoning_while_it_is_thought(thinking):
    chat, _ = thinking()
    kinds = [block["type"] for chunk in chat.stream("2 and 3?") for block in chunk.content_blocks]
    assert kinds == sorted(kinds)
    assert kinds.count("reasoning") > 3


def test_its_answers_go_into_the_next_conversation_without_their_reasoning(thinking):
    chat, asked = thinking()
    chat.invoke([HumanMessage("2 and 3?"), chat.invoke("2 and 3?"), HumanMessage("Sure?")])
    prompt, _ = asked[-1]
    assert SAID in prompt
    assert THOUGHT not in prompt


def test_a_schema_holds_the_answer_and_not_the_reasoning(thinking):
    chat, _ = thinking(says='{"value": 5}')
    found = chat.with_structured_output(Sum, include_raw=True).invoke("2 and 3?")
    assert found["parsed"] == Sum(value=5)
    assert found["raw"].content_blocks[0] == BLOCKS[0]


@pytest.mark.parametrize("choice", ["any", "auto"])
@pytest.mark.parametrize("way", ["invoke", "astream"])
def test_a_model_thinks_before_it_calls_a_tool(thinking, choice, way):
    call = json.dumps({"name": "add", "arguments": {"a": 2, "b": 3}})
    chat, _ = thinking(says=call if choice == "any" else f"<tool_call>{call}</tool_call>")
    message = WAYS[way](chat.bind_tools([add], tool_choice=choice))
    assert [(made["name"], made["args"]) for made in message.tool_calls] == [
        ("add", {"a": 2, "b": 3})
    ]
    assert message.content == ""
    assert message.content_blocks[0] == BLOCKS[0]


def test_an_effort_is_a_variable_of_the_template(thinking):
    chat, asked = thinking(template_args={"enable_thinking": True})
    chat.invoke("2 and 3?", reasoning_effort="low")
    chat.bind(reasoning_effort="high").invoke("2 and 3?")
    chat.invoke("2 and 3?")
    assert [options.template_args for _, options in asked] == [
        {"enable_thinking": True, "reasoning_effort": "low"},
        {"enable_thinking": True, "reasoning_effort": "high"},
        {"enable_thinking": True},
    ]


def test_its_profile_says_whether_reasoning_comes_apart(thinking, engine):
    chat, _ = thinking()
    assert chat.profile["reasoning_output"]
    assert not ChatRAGCache(engine=engine).profile["reasoning_output"]


def test_an_answer_without_reasoning_has_nothing_of_it(engine):
    message = ChatRAGCache(engine=engine, temperature=0).invoke("2 and 3?")
    assert message.additional_kwargs == {}
    assert "output_token_details" not in message.usage_metadata
    assert message.content_blocks == [{"type": "text", "text": "You asked: 2 and 3?"}]


def test_a_text_that_is_continued_keeps_its_tags(thinking):
    chat, _ = thinking()
    llm = RAGCacheLLM(engine=chat.engine, temperature=0)
    assert llm.invoke("2 and 3 are") == f"<think>{THOUGHT}</think>{SAID}"


def test_answers_of_other_classes_with_reasoning_are_read(thinking):
    chat, asked = thinking()
    earlier = AIMessage(SAID, additional_kwargs={"reasoning_content": "As Ollama has it."})
    chat.invoke([HumanMessage("2 and 3?"), earlier, HumanMessage("Sure?")])
    assert "As Ollama has it." not in asked[-1][0]
