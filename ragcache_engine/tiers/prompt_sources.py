"""Where each part of a request's prompt came from, and why its documents had to be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class Reason(StrEnum):
    """Why a document, or the rest of one, was computed."""

    FIRST_TIME = "no request had it before"
    OTHER_CONTEXT = "known behind other documents only"
    EVICTED = "it was evicted"
    QUICKER = "computing was quicker than loading"
    SHARED_BLOCK = "its end shares a block with what follows"
    JOINT = "the text between two documents was computed"


@dataclass(frozen=True, slots=True)
class PromptSources:
    """Where a prompt's tokens came from when the request was first admitted.

    runs: runs of cached tokens from the prompt's beginning: each one's end, and the name of its tier. All
      tokens after the last run were computed.
    reasons: for each document that was not cached as a whole, why.
    """

    runs: Sequence[tuple[int, str]] = ()
    reasons: Mapping[str, Reason] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, to send to another process."""
        return {
            "runs": [list(run) for run in self.runs],
            "reasons": {name: reason.value for name, reason in self.reasons.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what to_dict() returned."""
        return cls(
            tuple((end, tier) for end, tier in content["runs"]),
            {name: Reason(reason) for name, reason in content["reasons"].items()},
        )

    def tokens_by_tier(self, start: int, end: int) -> dict[str, int]:
        """Count the cached tokens among tokens [start, end), by tier."""
        counted: dict[str, int] = {}
        begin = 0
        for run_end, tier in self.runs:
            if tokens := max(0, min(end, run_end) - max(start, begin)):
                counted[tier] = counted.get(tier, 0) + tokens
            begin = run_end
        return counted

    def why(self, document: str, tokens: int, cached_tokens: int) -> str:
        """Return why a document was not cached as a whole; empty if it was, or if nobody knows."""
        if cached_tokens >= tokens:
            return ""
        # A document whose own blocks were all cached ends in a block that what follows owns.
        rest = Reason.SHARED_BLOCK if cached_tokens else ""
        return str(self.reasons.get(document, rest))
