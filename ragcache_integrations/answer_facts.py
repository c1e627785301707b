"""Turns the cost and the timeline of an answer into plain values for both frameworks, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine import (
    FinishReason,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
    Tier,
    Usage,
)


def answer_facts(finish_reason: FinishReason, usage: Usage) -> dict[str, Any]:
    """Return the facts of an answer that neither framework has a field for. Times are in seconds.

    How many tokens were cached, in total and by tier, is left out if it is not known.
    """
    return {
        **(cached_counts(usage) if usage.has_account else {}),
        "finish_reason": finish_reason.value,
        "ttft_s": usage.ttft_s,
        "total_s": usage.total_s,
        "retrieval_s": usage.retrieval_s,
        "document_ids": list(usage.document_ids),
        "repeated_ids": list(usage.repeated_ids),
        "is_exact": usage.is_exact,
        "borrowed_tokens": usage.borrowed.total,
        "recomputed_tokens": usage.recomputed_tokens,
        "speculation": usage.speculation.outcome.value,
        "speculation_timeline": plain_timeline(usage.speculation),
    }


def cached_counts(usage: Usage) -> dict[str, int]:
    """Return how many of the prompt's tokens were cached: `cached_tokens`, and for each tier."""
    by_tier = {f"cached_tokens_{tier.value}": getattr(usage.cached, tier.value) for tier in Tier}
    return {"cached_tokens": usage.cached.total, **by_tier}


def token_counts(usages: Sequence[Usage]) -> dict[str, Any]:
    """Sum up the tokens of several answers, under OpenAI's names, which both frameworks read."""
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.output_tokens for usage in usages)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def plain_timeline(report: SpeculationReport) -> list[dict[str, Any]]:
    """Return the report's events in order.

    at_s: seconds since the question. step: the value of a SpeculationStep.
    """
    return [
        {"at_s": event.at_s, "step": event.step.value, "detail": event.detail}
        for event in report.timeline
    ]


def report_of(outcome: str, timeline: Sequence[Mapping[str, Any]]) -> SpeculationReport:
    """Rebuild the report that `plain_timeline` made plain.

    Raises ValueError for an outcome or a step that the engine does not have.
    """
    return SpeculationReport(
        SpeculationOutcome(outcome),
        tuple(
            SpeculationEvent(event["at_s"], SpeculationStep(event["step"]), event["detail"])
            for event in timeline
        ),
    )
