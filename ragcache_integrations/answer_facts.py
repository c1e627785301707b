"""What an answer cost, in values that any framework can keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_engine import FinishReason, Usage
from ragcache_integrations.timeline import plain_timeline


def answer_facts(finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
    """What LangChain has no place of its own for. Times are seconds."""
    return {
        "finish_reason": finish_reason.value,
        "ttft_s": usage.ttft_s,
        "total_s": usage.total_s,
        "retrieval_s": usage.retrieval_s,
        "document_ids": list(usage.document_ids),
        "speculation": usage.speculation.outcome.value,
        "speculation_timeline": plain_timeline(usage.speculation),
    }


def token_counts(usages: Sequence[Usage]) -> dict[str, Any]:
    """The tokens of these answers together, by OpenAI's names, which both frameworks look for."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
