"""The messages of a conversation, as OpenAI's chat API has them, checked before a template sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine.errors import RefusedMessages


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with a role and with texts for its content.

    content: a string, a sequence of {"type": "text", "text": ...}, or None beside tool calls.
    Raises RefusedMessages.
    """
    if not messages:
        raise RefusedMessages("the conversation is empty: give it at least one message")
    return [_check_message(message, number) for number, message in enumerate(messages)]


def _check_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise RefusedMessages(f"message {number} has no role, such as 'user': {dict(message)!r}")
    if content is None and message.get("tool_calls"):
        return dict(message)
    if isinstance(content, str):
        return dict(message)
    if isinstance(content, Sequence):
        return {**message, "content": [_text_part(part, number) for part in content]}
    raise RefusedMessages(f"the content of message {number} must be text, got {content!r}")


def _text_part(part: Any, number: int) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and part.get("type") == "text" and "text" in part:
        return {"type": "text", "text": str(part["text"])}
    kind = part.get("type", part) if isinstance(part, Mapping) else type(part).__name__
    raise RefusedMessages(
        f"message {number} holds a part of kind {kind!r}, and the engine reads text only: leave it "
        f"out, or say in words what it shows"
    )


def plain_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a checked content."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)
