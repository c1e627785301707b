"""Refuses structured answers that ended too early, before a parser completes them silently.

LangChain's JSON parsers close the brackets of a JSON text that breaks off. That suits the pieces of a
stream, but a whole answer that breaks off is an answer with missing or shortened values.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import Runnable, RunnableGenerator
from langchain_core.utils.json import parse_partial_json

from ragcache_engine import AnswerCutShort, FinishReason
from ragcache_integrations.cut_answers import describe_cut_answer


def pass_complete_answers() -> Runnable[AIMessage, AIMessage]:
    """Return a step that passes messages on, and raises AnswerCutShort for one that ended too early.

    In a stream, it raises after the last chunk, because no earlier chunk says why the answer ended.
    """
    return RunnableGenerator(_pass_on, _apass_on, name="pass_complete_answers")


def require_complete(message: AIMessage) -> AIMessage:
    """Return the message. Raises AnswerCutShort if it ended before its JSON was complete."""
    finish_reason = message.response_metadata.get("finish_reason")
    if finish_reason is None:  # a stream whose reader left: nobody waits for the rest
        return message
    texts = _json_texts(message)
    if finish_reason == FinishReason.LENGTH.value and not _is_whole(message):
        usage = message.usage_metadata
        tokens = usage["output_tokens"] if usage else "so many"
        advice = (
            f"the answer ended after {tokens} tokens, before its form was complete: raise max_tokens (a "
            f"call may: chat.with_structured_output(schema, max_tokens=...)), shorten the prompt if it "
            f"fills the model's context, or bound the lengths of strings and lists in the schema"
        )
        raise AnswerCutShort(describe_cut_answer("".join(texts), advice))
    if any(_breaks_off(text) for text in texts):
        raise AnswerCutShort(
            "a stop string ended the answer before its form was complete: call the model without "
            "stop, because a schema already says where the answer ends"
        )
    return message


def _pass_on(messages: Iterator[Any]) -> Iterator[Any]:
    whole: Any = None
    for message in messages:
        whole = message if whole is None else whole + message
        yield message
    if whole is not None:
        require_complete(whole)


async def _apass_on(messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
    whole: Any = None
    async for message in messages:
        whole = message if whole is None else whole + message
        yield message
    if whole is not None:
        require_complete(whole)


def _is_whole(message: AIMessage) -> bool:
    """Return whether the message has all of its calls, or of its JSON text if it calls no tool."""
    if isinstance(message, AIMessageChunk) and message.tool_call_chunks:
        # The calls of a chunk are completed as a JSON text is.
        return all(_is_json(call["args"] or "") for call in message.tool_call_chunks)
    if message.invalid_tool_calls:
        return False
    return bool(message.tool_calls) or _is_json(str(message.text))


def _is_json(text: str) -> bool:
    """Return whether this is a whole JSON text. A number alone is none: more digits may be missing."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return not text.rstrip()[-1].isdigit()


def _json_texts(message: AIMessage) -> list[str]:
    calls: list[Any] = [*message.invalid_tool_calls]
    if isinstance(message, AIMessageChunk):
        calls += message.tool_call_chunks
    return [str(message.text), *(call["args"] or "" for call in calls)]


def _breaks_off(text: str) -> bool:
    """Return whether the text is the beginning of a JSON text, which a parser would complete."""
    try:
        json.loads(text)
    except ValueError:
        try:
            parse_partial_json(text)
        except ValueError:  # no JSON at all: the parser says so better
            return False
        return bool(text.strip())
    return False
