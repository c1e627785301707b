"""What happened between a question and its first token, in values that any framework can keep."""

from __future__ import annotations

from typing import Any

from ragcache_engine import SpeculationReport


def plain_timeline(report: SpeculationReport) -> list[dict[str, Any]]:
    """In order; at_s: seconds since the question. step: a value of SpeculationStep."""
    return [
        {"at_s": event.at_s, "step": event.step.value, "detail": event.detail}
        for event in report.timeline
    ]
