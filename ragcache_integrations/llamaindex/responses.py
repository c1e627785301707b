"""Ours to theirs: answers and what they cost, where LlamaIndex and its users look for it."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
)

from ragcache_engine import Answer, FinishReason, Piece, Tier, Usage
from ragcache_integrations.timeline import plain_timeline


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
    counts = _token_counts(usage)
    return CompletionResponse(
        text=text,
        delta=delta,
        # Here LlamaIndex's TokenCountingHandler looks; it estimates if it finds nothing.
        raw={"usage": counts, "finish_reason": finish_reason.value},
        additional_kwargs={
            **counts,
            "cached_tokens": usage.cached.total,
            **{f"cached_tokens_{tier.value}": getattr(usage.cached, tier.value) for tier in Tier},
            "finish_reason": finish_reason.value,
            "ttft_s": usage.ttft_s,
            "total_s": usage.total_s,
            "retrieval_s": usage.retrieval_s,
            "document_ids": list(usage.document_ids),
            "speculation": usage.speculation.outcome.value,
            "speculation_timeline": plain_timeline(usage.speculation),
        },
    )


def _token_counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
