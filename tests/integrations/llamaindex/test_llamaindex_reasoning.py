"""What a model thinks comes as LlamaIndex's ThinkingBlock, before the answer."""

import asyncio
import json

import pytest
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import TextBlock, ThinkingBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory.words import split_words
from ragcache_integrations.llamaindex import RAGCacheLLM

THOUGHT, SAID = "They ask for a sum.", "It is 5."
ASKED = [ChatMessage("2 and 3?")]


@pytest.fixture
def thinking(recording):
    """says -> (LLM, what reached its backend). Its replies are the thought and then `says`."""
    opened = []

    def make(says=SAID):
        backend = recording(lambda prompt: f"<think>{THOUGHT}</think>{says}")
        config = EngineConfig(backend="memory", reasoning_parser="qwen3")
        engine = RAGCacheEngine(config, backend=backend)
        opened.append(engine)
        return RAGCacheLLM(engine=engine, temperature=0), backend.asked

    yield make
    for engine in opened:
        engine.close()


async def streamed(llm, **kwargs):
    return [response async for response in await llm.astream_chat(ASKED, **kwargs)]


WAYS = {
    "chat": lambda llm: [llm.chat(ASKED)],
    "achat": lambda llm: [asyncio.run(llm.achat(ASKED))],
    "stream_chat": lambda llm: list(llm.stream_chat(ASKED)),
    "astream_chat": lambda llm: asyncio.run(streamed(llm)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask_gives_the_reasoning_as_a_block(thinking, way):
    llm, _ = thinking()
    *parts, last = WAYS[way](llm)
    assert last.message.blocks == [ThinkingBlock(content=THOUGHT), TextBlock(text=SAID)]
    assert last.message.content == SAID
    assert last.additional_kwargs["reasoning_tokens"] == len(split_words(THOUGHT))
    if parts:
        deltas = [part.additional_kwargs.get("thinking_delta", "") for part in parts]
        assert "".join(deltas) == THOUGHT
        assert "".join(part.delta for part in [*parts, last]) == SAID


def test_its_answers_go_into_the_next_conversation_without_their_reasoning(thinking):
    llm, asked = thinking()
    llm.chat([*ASKED, llm.chat(ASKED).message, ChatMessage("Sure?")])
    prompt, _ = asked[-1]
    assert SAID in prompt
    assert THOUGHT not in prompt


def test_a_model_thinks_before_it_calls_a_tool(thinking):
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    llm, _ = thinking(says=json.dumps({"name": "add", "arguments": {"a": 2, "b": 3}}))
    response = llm.chat_with_tools(
        [FunctionTool.from_defaults(add)], "2 and 3?", tool_required=True
    )
    (call,) = llm.get_tool_calls_from_response(response)
    assert call.tool_kwargs == {"a": 2, "b": 3}
    assert response.message.blocks[0] == ThinkingBlock(content=THOUGHT)


def test_an_agent_shows_it_while_it_is_thought(thinking):
    llm, _ = thinking()

    async def watch():
        running = FunctionAgent(tools=[], llm=llm).run("2 and 3?")
        thought = [
            event.thinking_delta or ""
            async for event in running.stream_events()
            if isinstance(event, AgentStream)
        ]
        return "".join(thought), str(await running)

    assert asyncio.run(watch()) == (THOUGHT, SAID)


def test_an_answer_without_reasoning_has_only_its_text(engine):
    response = RAGCacheLLM(engine=engine, temperature=0).chat(ASKED)
    assert response.message.blocks == [TextBlock(text="You asked: 2 and 3?")]
