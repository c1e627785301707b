"""Ours to theirs: answers and what they cost, where LlamaIndex and its users look for it."""

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
    """A whole answer."""
    return _response(answer.text, None, answer.finish_reason, answer.usage)


def completion_so_far(text: str, piece: Piece) -> CompletionResponse:
    """A piece of a stream. text: everything up to and with it; only the last piece has a usage."""
    return _response(text, piece.text, piece.finish_reason, piece.usage)


def chat_response(completed: CompletionResponse) -> ChatResponse:
    """A completion as the assistant's message.

    What it cost stays off the message: LlamaIndex writes a message's additional_kwargs into the
    next prompt of the conversation, and the model would read them.
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
        # Here LlamaIndex's TokenCountingHandler looks; it estimates if it finds nothing.
        raw={"usage": counts, "finish_reason": finish_reason.value},
        additional_kwargs={
            **counts,
            "cached_tokens": usage.cached.total,
            **{f"cached_tokens_{tier.value}": getattr(usage.cached, tier.value) for tier in Tier},
            **answer_facts(finish_reason, usage),
        },
    )
