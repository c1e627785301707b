"""The engine's answers as LlamaIndex's responses, with what they cost."""

from __future__ import annotations

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
)

from ragcache_engine import Answer, FinishReason, Piece, Tier, Usage
from ragcache_integrations.answer_facts import answer_facts, token_counts


def completion(answer: Answer) -> CompletionResponse:
    """Return a whole answer as a completion."""
    return _response(answer.text, None, answer.finish_reason, answer.usage)


def completion_so_far(text: str, piece: Piece) -> CompletionResponse:
    """Return a piece of a stream as a completion.

    text: all text so far, this piece included. Only the last piece says what the answer cost.
    """
    return _response(text, piece.text, piece.finish_reason, piece.usage)


def chat_response(completed: CompletionResponse) -> ChatResponse:
    """Return a completion as the assistant's message.

    What the answer cost is not in the message's own additional_kwargs. LlamaIndex writes those into
    the next prompt of the conversation, where the model would read them.
    """
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=completed.text),
        delta=completed.delta,
        raw=completed.raw,
        additional_kwargs=completed.additional_kwargs,
    )


def _response(
    text: str, delta: str | None, finish_reason: FinishReason | None, usage: Usage | None
) -> CompletionResponse:
    if finish_reason is None or usage is None:
        return CompletionResponse(text=text, delta=delta)
    counts = token_counts([usage])
    return CompletionResponse(
        text=text,
        delta=delta,
        # LlamaIndex's TokenCountingHandler looks here; it estimates if it finds nothing.
        raw={"usage": counts, "finish_reason": finish_reason.value},
        additional_kwargs={
            **counts,
            "cached_tokens": usage.cached.total,
            **{f"cached_tokens_{tier.value}": getattr(usage.cached, tier.value) for tier in Tier},
            **answer_facts(finish_reason, usage),
        },
    )
