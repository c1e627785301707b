"""Times the requests in the scheduler's process, and remembers the last that ended, for observers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ragcache_engine.tiers.prompts import SegmentEnd
from ragcache_engine.tiers.provenance import (
    PromptSources,
    ReuseReport,
    TracedDocument,
    trace_document,
)
from ragcache_engine.tiers.tree_snapshot import ServedRequest

REMEMBERED = 30
"""So many ended requests are remembered."""


class _Timed:
    """A request's times, and what it takes to describe it once somebody looks."""

    __slots__ = (
        "admitted_s", "arrived_s", "cached", "ended_at", "ended_s", "first_token_s",
        "name", "prompt_tokens", "reuse", "segments", "sources",
    )  # fmt: skip

    def __init__(
        self, name: str, arrived_s: float, prompt_tokens: int, segments: Sequence[SegmentEnd]
    ) -> None:
        self.name = name
        self.arrived_s = arrived_s
        self.prompt_tokens = prompt_tokens
        self.segments = segments
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.ended_s = self.ended_at = 0.0
        self.cached: dict[str, int] = {}
        self.sources = PromptSources()
        self.reuse: ReuseReport | None = None

    def describe(self) -> ServedRequest:
        """Describe the request after its end."""
        first_token_s = self.ended_s if self.first_token_s is None else self.first_token_s
        admitted_s = first_token_s if self.admitted_s is None else self.admitted_s
        return ServedRequest(
            self.name,
            self.ended_at,
            waited_s=admitted_s - self.arrived_s,
            first_token_s=first_token_s - self.arrived_s,
            total_s=self.ended_s - self.arrived_s,
            prompt_tokens=self.prompt_tokens,
            cached=self.cached,
            documents=tuple(_trace(self.segments, self.sources, self.reuse)),
        )


class ServedRequests:
    """The requests in the scheduler, and the last that ended. One thread calls it.

    now: seconds on a clock that never runs back. wall_clock: seconds since 1970.
    unanswered: names of the requests without a first token.
    answering: names of the requests with more than one token to answer, so not those that only prepare.
    """

    def __init__(self, now: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._now = now
        self._wall_clock = wall_clock
        self._timed: dict[str, _Timed] = {}
        self.unanswered: set[str] = set()
        self.answering: set[str] = set()
        self._ended: deque[_Timed] = deque(maxlen=REMEMBERED)

    @property
    def recent(self) -> tuple[ServedRequest, ...]:
        """The last requests that ended with an answer, the oldest first."""
        return tuple(timed.describe() for timed in self._ended)

    @property
    def running(self) -> int:
        """How many requests have device memory."""
        return sum(timed.admitted_s is not None for timed in self._timed.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for device memory."""
        return len(self._timed) - self.running

    def arrive(
        self,
        name: str,
        prompt_tokens: int,
        segments: Sequence[SegmentEnd],
        most_answer_tokens: int = 1,
    ) -> None:
        """Note that a request begins to wait."""
        if most_answer_tokens > 1:
            self.answering.add(name)
        self._timed[name] = _Timed(name, self._now(), prompt_tokens, segments)
        self.unanswered.add(name)

    def admit(self, name: str) -> None:
        """Note that a request has its device memory; the first time counts."""
        if (timed := self._timed.get(name)) and timed.admitted_s is None:
            timed.admitted_s = self._now()

    def answer(self, name: str) -> None:
        """Note that a request has its first token."""
        self.unanswered.discard(name)
        if timed := self._timed.get(name):
            timed.first_token_s = self._now()

    def end(
        self,
        name: str,
        tokens: dict[str, int] | None,
        sources: PromptSources | None,
        *,
        completed: bool,
        reuse: ReuseReport | None = None,
    ) -> None:
        """Note that a request has ended; remember it if it has its answer.

        tokens: its cached prompt tokens by tier. sources: where its prompt came from. reuse: what it
          borrowed.
        """
        timed = self._timed.pop(name, None)
        self.unanswered.discard(name)
        self.answering.discard(name)
        if timed is None or not completed:
            return
        # Its documents are traced when somebody looks: this is between two steps of the model.
        timed.ended_s, timed.ended_at = self._now(), self._wall_clock()
        timed.cached, timed.sources = tokens or {}, sources or PromptSources()
        timed.reuse = reuse
        self._ended.append(timed)


def _trace(
    segments: Sequence[SegmentEnd], sources: PromptSources, reuse: ReuseReport | None
) -> Iterator[TracedDocument]:
    reused = {one.document: one for one in reuse.documents} if reuse else {}
    start = 0
    for end, document in segments:
        if document is not None and end > start:
            yield trace_document(document, start, end, sources, reused.get(document))
        start = end
