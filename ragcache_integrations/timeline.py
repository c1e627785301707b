"""Turns the speculation timeline of an answer into plain values, and back."""

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
