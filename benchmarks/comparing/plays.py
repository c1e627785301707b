"""The measurements of requests that were played to systems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Play:
    """The requests of one round at one load, played to one system.

    rate: requests a second; None if each request came when one before it had ended.
    load: its name in the plan. round: plays with the same part, trace, load and round had the same
    requests. start: how often the systems had been started before. span_s: from the first arrival to the
    last token. cpu_s: processor time of the system. others_cpu_s: that of all other running systems.
    foreign_cpu_s: that of everything else on the machine.
    """

    part: str
    trace: str
    system: str
    load: str
    rate: float | None
    round: int
    span_s: float
    cpu_s: float
    others_cpu_s: float
    foreign_cpu_s: float
    answers: list[dict[str, Any]]
    start: int = 0


@dataclass(frozen=True, slots=True)
class Warming:
    """What it took a system to prefill the documents of a part.

    prompt_tokens: of the prompts that prefill them. computed_tokens: those of them that were computed.
    """

    part: str
    trace: str
    system: str
    start: int
    documents: int
    seconds: float
    prompt_tokens: int
    computed_tokens: int


@dataclass(slots=True)
class Seen:
    """Everything a run has measured so far.

    told: for each system, its own counters and its memory, after the plays of each start.
    capacity: by trace, how many requests a second vLLM without a cache completes.
    warmed: for each system that prefilled documents before a part, what that took.
    """

    plays: list[Play] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    capacity: dict[str, float] = field(default_factory=dict)
    warmed: list[Warming] = field(default_factory=list)
