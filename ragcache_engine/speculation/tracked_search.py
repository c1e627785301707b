"""The record of one search, from its first documents to the prompt that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean

from ragcache_engine.prompt import Render
from ragcache_engine.speculation.decide import count_same, share_replaced
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.outcomes import USEFUL
from ragcache_engine.values import (
    Document,
    SamplingOptions,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
)

MOSTLY = 0.5
"""Work of which at most this share was in vain was of use."""

BEGINNINGS = (SpeculationOutcome.OTHER_DOCUMENTS, SpeculationOutcome.OTHER_PROMPT)
"""The outcomes after which the question's prompt may begin as a guess did, and has its tensors."""

MOST_NAMED = 20
"""An event of a stage names so many documents at most, and counts the others."""

MOST_CANDIDATES = 64
"""So many candidates of a search are kept, the likeliest."""


@dataclass(slots=True, eq=False)
class TrackedSearch:
    """What the engine knows of one search. Times are seconds on the backend's clock.

    Read and change the record on the engine's loop only.
    number: identifies the search, so that its prompt finds it. started_s: when the search began.
    chain, template, options, tenant: what its prompt will be like; see RAGCacheEngine.retrieval.
    corpus: the name of the corpus that is searched; None if nobody told.
    planned: the ForgetLog's moment when the search began.
    is_worth_guessing: whether the engine speculates on this question; None until that was decided.
    documents: the documents of the last stage, nearest first; None before the first stage.
    since_s: for each of them, since when all documents up to it have been these.
    changes: how many times a stage had other documents than the one before. Of a stage that kept the
      first ones, the share of the others counts, so none of a stage that only added some.
    was_idle: whether no other prefill was pending when the last stage came that had other documents.
    candidates, candidates_s: documents of which some will be in the prompt, likeliest first, and when the
      first of them came; None before.
    learn_neighbours: looks up the neighbours of candidates; None if nothing is borrowed from behind them.
      It may take long.
    ended_s: when the search ended with documents; None while it runs.
    is_closed: whether the prompt has come, or will not come; then nothing more is started for this
      search.
    speculation: the one that now runs or waits for the prompt.
    speculations_started, speculations_cancelled: how many of each there were for this search; of one that
      shared its first documents with the next, the share of the others counts as cancelled. latest_wrong:
      that share of the latest one, or the share of its prompt that the question's does not begin with.
    preparing_s: how long it took to prepare the last one that the backend was given.
    is_in_estimate: whether the outcome already counts in the estimate of what speculating gains.
    """

    number: int
    question: str
    chain: Hashable
    template: Render | None
    options: SamplingOptions | None
    tenant: str | None
    started_s: float
    corpus: Hashable | None = None
    planned: int = 0
    is_worth_guessing: bool | None = None
    documents: Sequence[Document] | None = None
    since_s: Sequence[float] = ()
    changes: float = 0.0
    was_idle: bool = False
    candidates: Sequence[Document] = ()
    candidates_s: float | None = None
    learn_neighbours: Callable[[Sequence[Document]], None] | None = None
    ended_s: float | None = None
    is_closed: bool = False
    speculation: Speculation | None = None
    speculations_started: int = 0
    speculations_cancelled: float = 0.0
    latest_wrong: float = 1.0
    preparing_s: float = 0.0
    is_in_estimate: bool = False
    outcome: SpeculationOutcome = SpeculationOutcome.NONE
    _events: list[SpeculationEvent] = field(default_factory=list)

    def note_stage(
        self, now_s: float, documents: Sequence[Document], final: bool, *, is_idle: bool
    ) -> None:
        """Take in the documents of one stage. is_idle: no other prefill is pending now."""
        names = ", ".join(document.id for document in documents[:MOST_NAMED])
        if len(documents) > MOST_NAMED:  # pages may come one by one, and all are told each time
            names += f" and {len(documents) - MOST_NAMED} more"
        self.note(now_s, SpeculationStep.STAGE, f"final: {names}" if final else names)
        if self.documents != documents:
            before = self.documents or ()
            same = count_same(before, documents)
            self.changes += share_replaced(before, documents)
            self.since_s = [*self.since_s[:same], *[now_s] * (len(documents) - same)]
            self.documents, self.was_idle = documents, is_idle
        if final:
            self.ended_s = now_s

    @property
    def was_of_use(self) -> bool:
        """Whether the work that was started for it was: adopted, or mostly the prompt's beginning."""
        has_beginning = self.outcome in BEGINNINGS and self.latest_wrong < MOSTLY
        return self.outcome in USEFUL or has_beginning

    def early_s(self) -> float:
        """Return how long before the end of the search its documents were known, in the mean."""
        if self.ended_s is None or not self.since_s:
            return 0.0
        return self.ended_s - fmean(self.since_s)

    def note_candidates(self, now_s: float, documents: Sequence[Document]) -> None:
        """Take in more candidates, likeliest first: those of several searches take turns."""
        if self.candidates_s is None:
            self.candidates_s = now_s
        known = {one.id for one in self.candidates}
        more = [one for one in documents if one.id not in known]
        pairs = zip_longest(self.candidates, more)
        merged = {one.id: one for pair in pairs for one in pair if one is not None}
        self.candidates = tuple(merged.values())[:MOST_CANDIDATES]
        self.note(now_s, SpeculationStep.CANDIDATES, f"{len(documents)} documents")

    def note(self, at_s: float, step: SpeculationStep, detail: str = "") -> None:
        """Add an event to the timeline."""
        self._events.append(SpeculationEvent(at_s - self.started_s, step, detail))

    def report(self) -> SpeculationReport:
        """Return the outcome and the timeline, its events in the order of their times."""
        # The first token of an adopted answer is noted when it is handed out, after it was computed.
        events = sorted(self._events, key=lambda event: event.at_s)
        return SpeculationReport(self.outcome, tuple(events))
