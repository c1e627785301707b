"""Writes LlamaIndex's messages as a prompt, by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.generic_utils import messages_to_prompt
from llama_index.core.base.llms.types import (
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from ragcache_engine import NoChatTemplate, RAGCacheEngine
from ragcache_integrations.cache_hints import mark_of
from ragcache_integrations.llamaindex.tool_calling import arguments_so_far

# Roles that chat templates do not have, and the roles they have instead.
_TEMPLATE_ROLES = {
    MessageRole.DEVELOPER: "system",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
    MessageRole.FUNCTION: "tool",
}
# Not sent: what a model thought before an earlier answer or cited beside it.
_LEFT_OUT = (ThinkingBlock, CitationBlock)


def write_conversation(engine: RAGCacheEngine, messages: Sequence[ChatMessage]) -> str:
    """Return the prompt of a conversation, by the model's chat template; by LlamaIndex's if it has none.

    Raises RefusedMessages for content that the template cannot write, such as a picture.
    """
    try:
        return engine.chat.prompt(as_messages(messages))
    except NoChatTemplate:
        return messages_to_prompt(messages)


def as_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages in the form of OpenAI's chat API.

    Of a part that is not text, only the kind is kept, so that the engine's error can name it.
    """
    return [_as_message(message) for message in messages]


def _as_message(message: ChatMessage) -> dict[str, Any]:
    calls = [_as_call(block) for block in _calls_of(message)]
    converted: dict[str, Any] = {
        "role": _TEMPLATE_ROLES.get(message.role, message.role.value),
        "content": _content(message, bool(calls)),
    }
    if calls:
        converted["tool_calls"] = calls
    if converted["role"] == "tool" and (call_id := message.additional_kwargs.get("tool_call_id")):
        converted["tool_call_id"] = call_id
    return converted


def _content(message: ChatMessage, has_calls: bool) -> str | list[dict[str, str]] | None:
    parts: list[dict[str, str]] = []
    for block in message.blocks:
        if isinstance(block, CachePoint):
            if parts and "text" in parts[-1]:
                parts[-1]["text"] += mark_of(block.cache_control)
        elif not isinstance(block, (ToolCallBlock, *_LEFT_OUT)):
            parts += _parts(block)
    if any(part["type"] != "text" for part in parts):
        return parts
    text = "\n".join(part["text"] for part in parts)
    return None if has_calls and not parts else text


def _parts(block: Any) -> list[dict[str, str]]:
    """Return the texts of a block; of one that is not text, its kind alone."""
    if isinstance(block, TextBlock):
        return [{"type": "text", "text": block.text}]
    if isinstance(block, CitableBlock):
        return [part for cited in block.content for part in _parts(cited)]
    if isinstance(block, DocumentBlock) and block.data and block.document_mimetype == "text/plain":
        return [{"type": "text", "text": block.resolve_document().read().decode()}]
    return [{"type": block.block_type}]


def _calls_of(message: ChatMessage) -> list[ToolCallBlock]:
    """Return the calls of a message: its blocks, or without any, what additional_kwargs hold.

    LlamaIndex kept calls there before it had blocks for them.
    """
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    return blocks or [
        ToolCallBlock(
            tool_call_id=_value(call, "id"),
            tool_name=_value(function, "name"),
            tool_kwargs=_value(function, "arguments"),
        )
        for call in message.additional_kwargs.get("tool_calls") or ()
        if (function := _value(call, "function")) is not None
    ]


def _value(part: Any, name: str) -> Any:
    """Return a value of a call in OpenAI's form, which is a dict or an object; None if it has none."""
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _as_call(block: ToolCallBlock) -> dict[str, Any]:
    function = {"name": block.tool_name, "arguments": arguments_so_far(block)}
    return {"id": block.tool_call_id, "type": "function", "function": function}
