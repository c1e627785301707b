"""Translates LangChain's messages for the engine, and the engine's answers into messages."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
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
from ragcache_integrations.cache_hints import mark_of
from ragcache_integrations.langchain.logprobs import with_logprobs
from ragcache_integrations.langchain.usage import usage_metadata

PROVIDER = "ragcache"

_SAID = ("text", "text-plain", "refusal")
"""Kinds of blocks that are what a model said."""
_SHOWN = ("image", "audio", "video", "file", "text-plain")
"""Kinds of blocks that stand for data. Of these, the engine reads a plain text that is in the block."""


def conversation(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert the messages to OpenAI's form, which the engine takes.

    Content may be text or blocks, LangChain's own or a vendor's. Of an answer, the texts, refusals and
    tool calls are kept; what a model did beside them, such as its reasoning, is left out.
    Raises RefusedMessages for pictures and other data, and for unknown blocks outside of answers.
    """
    try:
        readable = [_make_readable(message, number) for number, message in enumerate(messages)]
        converted = convert_to_openai_messages(readable, text_format="string")
    except (ValueError, TypeError) as error:
        raise RefusedMessages(
            f"a message holds what the engine cannot read: {error}; it reads text and tool calls"
        ) from error
    assert isinstance(converted, list)
    return converted


def _make_readable(message: BaseMessage, number: int) -> BaseMessage:
    """Return the message with blocks that LangChain's converter and the engine understand."""
    # A human message's blocks are read without the translator of a vendor, some of which drop text.
    blocks = [_unpack(block) for block in HumanMessage(message.content).content_blocks]
    for block in blocks:
        if block["type"] in _SHOWN and _text_of(block) is None:
            raise RefusedMessages(
                f"message {number} has a part of kind {block['type']!r}, and the engine reads only "
                f"text: leave that part out, or describe in words what it shows"
            )
    if isinstance(message, AIMessage):
        texts = [_text_of(block) or "" for block in blocks if block["type"] in _SAID]
        said = "".join(texts) or message.additional_kwargs.get("refusal") or ""
        calls = [*message.tool_calls, *_unlisted_calls(message)]
        return message.model_copy(update={"content": said, "tool_calls": calls})
    if isinstance(message.content, str):
        return message
    content: list[dict[str, Any]] = []
    for block in blocks:
        hint = block.get("cache_control") or (block.get("extras") or {}).get("cache_control")
        if "cachePoint" in block:  # Bedrock's, for what stands before it
            hint = block["cachePoint"]
        else:
            text = _text_of(block)
            content.append(block if text is None else {"type": "text", "text": text})
        if hint and content and isinstance(content[-1].get("text"), str):
            content[-1]["text"] += mark_of(hint)
    return message.model_copy(update={"content": content})


def _unpack(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as its vendor wrote it if LangChain has no standard for it, and with a type."""
    if block["type"] != "non_standard":
        return dict(block)
    value = block["value"]
    return {"type": next(iter(value), "non_standard"), **value}  # some vendors' have no `type`


def _text_of(block: Mapping[str, Any]) -> str | None:
    """Return the text of a block, with a document's title before it; None for one that has none."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "text-plain", "text": str(text)}:
            pass
        case {"type": "text-plain", "base64": str(encoded)}:
            text = b64decode(encoded).decode()
        case {"type": "search_result", "content": list(parts)} | {
            "type": "document",
            "source": {"content": list(parts)},
        } if all(part.get("type") == "text" for part in parts):
            text = "\n".join(part["text"] for part in parts)
        case _:
            return None
    about = {**(block.get("extras") or {}), **block}
    return "\n".join(filter(None, [about.get("title"), about.get("context"), text]))


def _unlisted_calls(message: AIMessage) -> Iterator[Any]:
    """Yield the tool calls among an answer's blocks that its `tool_calls` lacks."""
    if isinstance(message.content, str):
        return
    known = {call["id"] for call in message.tool_calls}
    args: dict[str, Any] | None
    for block in message.content:
        match block:
            case {"type": "tool_call", "id": id, "name": str(name), "args": dict(args)}:
                pass
            case {"type": "tool_use", "id": id, "name": str(name), "input": dict(args)}:
                pass
            case {
                "type": "function_call",
                "call_id": id,
                "name": str(name),
                "arguments": str(arguments),
            }:
                args = _parse_object(arguments)
            case _:
                continue
        if id not in known and args is not None:
            yield tool_call(name=name, args=args, id=id)


def chat_result(answer: Answer, answer_parts: ToolAnswer, model_name: str) -> ChatResult:
    """Return a whole answer as a chat generation. answer_parts: its text and its tool calls."""
    calls = [_tool_call(call) for call in answer_parts.calls]
    message = AIMessage(
        content=answer_parts.text,
        additional_kwargs=_reasoning(answer),
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
        additional_kwargs=_reasoning(piece),
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


def _reasoning(answer: Answer | Piece) -> dict[str, Any]:
    """Return the reasoning where LangChain's standard content blocks take it from."""
    return {"reasoning_content": answer.reasoning} if answer.reasoning else {}


def _response_metadata(answer: Answer | Piece, model_name: str) -> dict[str, Any]:
    assert answer.finish_reason is not None
    assert answer.usage is not None
    facts = answer_facts(answer.finish_reason, answer.usage)
    return {"model_name": model_name, "model_provider": PROVIDER, **facts}


def _tool_call(call: ToolCall) -> Any:
    arguments = _parse_object(call.arguments)
    if arguments is not None:
        return tool_call(name=call.name, args=arguments, id=call.id)
    return invalid_tool_call(
        name=call.name,
        args=call.arguments,
        id=call.id,
        error="the arguments are not a JSON object: give max_tokens more room, or ask again",
    )


def _parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
