"""Translates LangChain's messages for the engine, and the engine's answers into messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from ragcache_engine import (
    Answer,
    Piece,
    RefusedMessages,
    ToolAnswer,
    ToolAnswerPart,
    ToolCall,
)
from ragcache_integrations.answer_facts import answer_facts
from ragcache_integrations.langchain.logprobs import with_logprobs
from ragcache_integrations.langchain.usage import usage_metadata

PROVIDER = "ragcache"


def conversation(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert the messages to OpenAI's form, which the engine takes.

    Raises RefusedMessages for content that is neither text nor a tool call.
    """
    try:
        converted = convert_to_openai_messages(list(messages), text_format="string")
    except (ValueError, TypeError) as error:
        raise RefusedMessages(
            f"a message holds what the engine cannot read: {error}; it reads text and tool calls"
        ) from error
    assert isinstance(converted, list)
    return converted


def chat_result(answer: Answer, answer_parts: ToolAnswer, model_name: str) -> ChatResult:
    """Return a whole answer as a chat generation. answer_parts: its text and its tool calls."""
    calls = [_tool_call(call) for call in answer_parts.calls]
    message = AIMessage(
        content=answer_parts.text,
        tool_calls=[call for call in calls if call["type"] == "tool_call"],
        invalid_tool_calls=[call for call in calls if call["type"] == "invalid_tool_call"],
        usage_metadata=usage_metadata(answer.usage),
        response_metadata={
            **_response_metadata(answer, model_name),
            **with_logprobs(answer.logprobs),
        },
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def chat_chunk(piece: Piece, part: ToolAnswerPart, model_name: str) -> ChatGenerationChunk:
    """Return a piece of a streamed answer as a chunk. part: the text and tool calls that it adds.

    Only the last chunk says what the answer cost, because LangChain adds chunks up.
    """
    is_last = piece.usage is not None
    message = AIMessageChunk(
        content=part.text,
        tool_call_chunks=[
            tool_call_chunk(
                index=call.index, id=call.id, name=call.name, args=call.arguments or None
            )
            for call in part.calls
        ],
        usage_metadata=usage_metadata(piece.usage) if piece.usage else None,
        response_metadata={
            **(_response_metadata(piece, model_name) if is_last else {}),
            **with_logprobs(piece.logprobs),
        },
        chunk_position="last" if is_last else None,
    )
    return ChatGenerationChunk(message=message)


def _response_metadata(answer: Answer | Piece, model_name: str) -> dict[str, Any]:
    assert answer.finish_reason is not None
    assert answer.usage is not None
    facts = answer_facts(answer.finish_reason, answer.usage)
    return {"model_name": model_name, "model_provider": PROVIDER, **facts}


def _tool_call(call: ToolCall) -> Any:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return tool_call(name=call.name, args=arguments, id=call.id)
    return invalid_tool_call(
        name=call.name,
        args=call.arguments,
        id=call.id,
        error="the arguments are not a JSON object: give max_tokens more room, or ask again",
    )
