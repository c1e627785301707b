"""Turns the cost of an answer into plain values that both frameworks can keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_engine import FinishReason, Usage
from ragcache_integrations.timeline import plain_timeline


def answer_facts(finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
    """Return the facts of an answer that neither framework has a field for. Times are in seconds."""
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
    """Sum up the tokens of several answers, under OpenAI's names, which both frameworks read."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
