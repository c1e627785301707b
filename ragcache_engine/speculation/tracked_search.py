"""One search the engine was told of, from its first documents to the prompt made of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ragcache_engine.prompt import Render
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.values import (
    Document,
    SamplingOptions,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
)


@dataclass(slots=True, eq=False)
class TrackedSearch:
    """What is known of it, on the engine's loop; times in seconds on the backend's clock.

    number: by which the prompt is joined to it. started_s: when the question was asked.
    chain, template, options, tenant: what its prompt will be like, see RAGCacheEngine.retrieval.
    is_worth_guessing: whether it is speculated on; None until that was first asked.
    documents: those of its last stage. documents_since_s: since when they are what they are.
    was_idle: whether nothing else waited for its prefill then.
    ended_s: when it ended with documents. is_closed: nothing may be begun for it any more.
    begun, cancelled: speculations of it; and those that came to nothing.
    is_in_estimate: its outcome has gone into the estimate of what speculating gains.
    """

    number: int
    question: str
    chain: Hashable
    template: Render | None
    options: SamplingOptions | None
    tenant: str | None
    started_s: float
    is_worth_guessing: bool | None = None
    documents: Sequence[Document] | None = None
    documents_since_s: float = 0.0
    was_idle: bool = False
    ended_s: float | None = None
    is_closed: bool = False
    speculation: Speculation | None = None
    begun: int = 0
    cancelled: int = 0
    is_in_estimate: bool = False
    outcome: SpeculationOutcome = SpeculationOutcome.NONE
    _events: list[SpeculationEvent] = field(default_factory=list)

    def note(self, at_s: float, step: SpeculationStep, detail: str = "") -> None:
        """at_s: on the backend's clock."""
        self._events.append(SpeculationEvent(at_s - self.started_s, step, detail))

    def report(self) -> SpeculationReport:
        # The first token of adopted work is told when it is handed out, and may be older than that.
        events = sorted(self._events, key=lambda event: event.at_s)
        return SpeculationReport(self.outcome, tuple(events))
