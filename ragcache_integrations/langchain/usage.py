"""Puts the cost of an answer where LangChain looks for it, under LangChain's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from ragcache_engine import Answer, FinishReason, Piece, Usage
from ragcache_integrations.answer_facts import answer_facts, token_counts
from ragcache_integrations.langchain.logprobs import with_logprobs


def llm_result(answers: Sequence[Answer], model_name: str) -> LLMResult:
    """Return one generation for each prompt, and the token usage of all of them together."""
    return LLMResult(
        generations=[[_generation(answer)] for answer in answers],
        llm_output={
            "token_usage": _token_usage([answer.usage for answer in answers]),
            "model_name": model_name,
        },
    )


def generation_chunk(piece: Piece) -> GenerationChunk:
    """Return a piece of a streamed answer as a chunk.

    Only the last chunk says what the answer cost, because LangChain adds chunks up.
    """
    info = with_logprobs(piece.logprobs)
    if piece.finish_reason and piece.usage:
        info |= _generation_info(piece.finish_reason, piece.usage)
    return GenerationChunk(text=piece.text, generation_info=info or None)


def _generation(answer: Answer) -> Generation:
    return Generation(
        text=answer.text,
        generation_info={
            **_generation_info(answer.finish_reason, answer.usage),
            **with_logprobs(answer.logprobs),
        },
    )


def _generation_info(finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
    return {**answer_facts(finish_reason, usage), "usage_metadata": usage_metadata(usage)}


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Return LangChain's UsageMetadata, with `cache_read` if that is known.

    What the tiers gave is not there, because the details of a usage count each token once.
    """
    counts = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
    )
    if usage.reasoning_tokens:
        counts["output_token_details"] = {"reasoning": usage.reasoning_tokens}
    if not usage.has_account:
        return counts
    counts["input_token_details"] = {"cache_read": usage.cached.total}
    return counts


def _token_usage(usages: Sequence[Usage]) -> dict[str, Any]:
    if not all(usage.has_account for usage in usages):
        return token_counts(usages)
    cached_tokens = sum(usage.cached.total for usage in usages)
    return {**token_counts(usages), "prompt_tokens_details": {"cached_tokens": cached_tokens}}
