"""The engine's answers as LlamaIndex's responses, with what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from ragcache_engine import (
    Answer,
    FinishReason,
    Piece,
    ToolAnswer,
    ToolAnswerPart,
    ToolCall,
    Usage,
)
from ragcache_integrations.answer_facts import answer_facts, cached_counts, token_counts


def completion(answer: Answer) -> CompletionResponse:
    """Return a whole answer as a completion."""
    return CompletionResponse(text=answer.text, **_costs(answer.finish_reason, answer.usage))


def completion_so_far(text: str, piece: Piece) -> CompletionResponse:
    """Return a piece of a stream as a completion.

    text: all text so far, this piece included. Only the last piece says what the answer cost.
    """
    return CompletionResponse(
        text=text, delta=piece.text, **_costs(piece.finish_reason, piece.usage)
    )


def chat_response(answer: Answer, said: ToolAnswer) -> ChatResponse:
    """Return a whole answer as the assistant's message. said: its text and its tool calls."""
    return ChatResponse(
        message=_message(said.text, said.calls, answer.reasoning),
        **_costs(answer.finish_reason, answer.usage),
    )


class MessageSoFar:
    """The assistant's message while its pieces arrive."""

    def __init__(self) -> None:
        self._text = ""
        self._reasoning = ""
        self._calls: dict[int, ToolCall] = {}

    def add(self, piece: Piece, part: ToolAnswerPart) -> ChatResponse:
        """Return the message with all that has arrived. part: the text and calls that the piece adds.

        Only the last piece says what the answer cost.
        """
        self._text += part.text
        self._reasoning += piece.reasoning
        for call in part.calls:
            known = self._calls.get(call.index) or ToolCall("", "", "")
            self._calls[call.index] = ToolCall(
                known.id or call.id or "",
                known.name or call.name or "",
                known.arguments + call.arguments,
            )
        response = ChatResponse(
            message=_message(self._text, list(self._calls.values()), self._reasoning),
            delta=part.text,
            **_costs(piece.finish_reason, piece.usage),
        )
        if piece.reasoning:
            response.additional_kwargs["thinking_delta"] = piece.reasoning  # agents look there
        return response


def _message(text: str, calls: Sequence[ToolCall], reasoning: str) -> ChatMessage:
    """Return the assistant's message.

    What the answer cost is not in the message's own additional_kwargs. LlamaIndex writes those into
    the next prompt of the conversation, where the model would read them.
    """
    thought = [ThinkingBlock(content=reasoning)] if reasoning else []
    texts = [TextBlock(text=text)] if text or not calls else []
    if not calls:
        return ChatMessage(role=MessageRole.ASSISTANT, blocks=[*thought, *texts])
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        blocks=[*thought, *texts, *map(_call_block, calls)],
        # Programs and chat memories of LlamaIndex look here to see whether there are calls.
        additional_kwargs={"tool_calls": [_openai_call(call) for call in calls]},
    )


def _call_block(call: ToolCall) -> ToolCallBlock:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    return ToolCallBlock(
        tool_call_id=call.id,
        tool_name=call.name,
        # As the model wrote them if they are no JSON object, perhaps because more pieces will come.
        tool_kwargs=arguments if isinstance(arguments, dict) else call.arguments,
    )


def _openai_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _costs(finish_reason: FinishReason | None, usage: Usage | None) -> dict[str, Any]:
    """Return the fields of a response that say what the answer cost; none before its end."""
    if finish_reason is None or usage is None:
        return {}
    counts = token_counts([usage])
    cached = cached_counts(usage) if usage.has_account else {}
    facts = answer_facts(finish_reason, usage)
    thought = {"reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    return {
        # LlamaIndex's TokenCountingHandler looks here, and estimates if it finds nothing. Of an agent's
        # answers, only this comes through.
        "raw": {"usage": {**counts, **cached, **thought}, **facts},
        "additional_kwargs": {**counts, **facts, **thought},
    }
