"""Check the messages of a conversation, in the form of OpenAI's chat API, before a template gets them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragcache_engine.errors import InvalidArgument, RefusedMessages

NO_TEMPLATE_ARGS = frozenset(
    {
        "messages", "conversation", "tools", "chat_template",
        "add_generation_prompt", "continue_final_message",
        "model_config", "tokenizer", "tokenize", "tokenizer_kwargs", "padding", "truncation",
        "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    }
)  # fmt: skip
"""What a chat template is applied with. As variables of a template they would take the place of what the
engine gives, even of the template itself."""


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check that each message has a role and that its content is text; return the messages as dicts.

    The content may be a string, a sequence of strings and {"type": "text", "text": ...}, or None in a
    message with tool calls. An answer's {"type": "refusal", "refusal": ...} is text too. Raises
    RefusedMessages for anything else.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise RefusedMessages(
            'a conversation is a sequence of messages, such as [{"role": "user", "content": "Hello."}]'
        )
    messages = list(messages)
    if not messages:
        raise RefusedMessages("the conversation is empty: give it at least one message")
    return [_check_message(message, number) for number, message in enumerate(messages)]


def _check_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RefusedMessages(
            f"message {number} must be a mapping with a role and a content, got {message!r}"
        )
    role, content = message.get("role"), message.get("content")
    if content is None and isinstance(message.get("refusal"), str):
        content = message["refusal"]
    if not isinstance(role, str) or not role:
        raise RefusedMessages(f"message {number} has no role, such as 'user': {dict(message)!r}")
    if not isinstance(message.get("tool_calls") or [], list | tuple):
        raise RefusedMessages(f"the tool_calls of message {number} must be a sequence of calls")
    if content is None and message.get("tool_calls"):
        return dict(message)
    if isinstance(content, str):
        return {**message, "content": content}
    if isinstance(content, Sequence):
        return {**message, "content": [_text_part(part, number) for part in content]}
    raise RefusedMessages(f"the content of message {number} must be text, got {content!r}")


def _text_part(part: Any, number: int) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and part.get("type") == "text" and "text" in part:
        return {"type": "text", "text": str(part["text"])}
    if isinstance(part, Mapping) and part.get("type") == "refusal" and "refusal" in part:
        return {"type": "text", "text": str(part["refusal"])}
    kind = part.get("type", part) if isinstance(part, Mapping) else type(part).__name__
    raise RefusedMessages(
        f"message {number} has a part of kind {kind!r}, and the engine reads only text: leave that part "
        f"out, or describe in words what it shows"
    )


def plain_text(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the text of a message's content that `check_messages` has checked."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def check_template_args(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return further variables of a chat template. Raises InvalidArgument for the engine's own names."""
    if not isinstance(args or {}, Mapping):
        raise InvalidArgument(f"template_args must be a mapping, got {args!r}")
    if taken := NO_TEMPLATE_ARGS.intersection(args or ()):
        raise InvalidArgument(
            f"template_args holds {', '.join(sorted(taken))}, which the engine itself gives to the chat "
            f"template: leave it out (a template of your own is EngineConfig(chat_template=...))"
        )
    return dict(args or {})
