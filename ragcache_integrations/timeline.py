"""What happened between a question and its first token, in values that any framework can keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ragcache_engine import (
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
)


def plain_timeline(report: SpeculationReport) -> list[dict[str, Any]]:
    """In order; at_s: seconds since the question. step: a value of SpeculationStep."""
    return [
        {"at_s": event.at_s, "step": event.step.value, "detail": event.detail}
        for event in report.timeline
    ]


def report_of(outcome: str, timeline: Sequence[Mapping[str, Any]]) -> SpeculationReport:
    """The way back from `plain_timeline`. Raises ValueError for words that are not the engine's."""
    return SpeculationReport(
        SpeculationOutcome(outcome),
        tuple(
            SpeculationEvent(event["at_s"], SpeculationStep(event["step"]), event["detail"])
            for event in timeline
        ),
    )
