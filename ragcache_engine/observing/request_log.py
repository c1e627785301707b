"""Remembers the last answered requests, with where each document's tensors came from."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from ragcache_engine.protocols import BackendRequest
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.provenance import PromptSources, TracedDocument, trace_document
from ragcache_engine.values import CachedTokens, TokenSegment, Usage

REMEMBERED = 100
"""So many requests are remembered."""

QUESTION_CHARACTERS = 200
"""So much of a question is remembered, from its end."""

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds; one more bucket takes all times above the last bound."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Where the tensors of one document of a prompt came from.

    tokens: the document's own. cached: those of them that were reused exactly, by tier.
    borrowed: tokens that were taken from another context, by tier; they are approximate.
    recomputed: tokens that were computed anew in their new context, because the document was borrowed.
    why: why the others were computed; empty if the engine does not know, or if none was.
    """

    document_id: str
    tokens: int
    cached: CachedTokens
    why: str = ""
    borrowed: CachedTokens = field(default_factory=CachedTokens)
    recomputed: int = 0

    @classmethod
    def of(cls, traced: TracedDocument) -> Self:
        """Return what the tiers have traced."""
        return cls(
            traced.name,
            traced.tokens,
            CachedTokens(**traced.cached),
            traced.why,
            CachedTokens(**traced.borrowed),
            traced.recomputed,
        )

    @property
    def computed_tokens(self) -> int:
        """How many of the document's tokens were prefilled, those recomputed among them."""
        return self.tokens - self.cached.total - self.borrowed.total


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One answered request. ended_at: when, in seconds since 1970.

    question: the end of the prompt's text behind its documents. documents: in the prompt's order.
    """

    request_id: str
    ended_at: float
    usage: Usage
    documents: tuple[DocumentSource, ...]
    question: str


@dataclass(frozen=True, slots=True)
class TimesToFirstToken:
    """How long requests took to their first token.

    counts: requests for each bound of TTFT_BUCKETS_S, and those above the last. sum_s: all together.
    """

    counts: tuple[int, ...] = (0,) * (len(TTFT_BUCKETS_S) + 1)
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Entry:
    request_id: str
    ended_at: float
    usage: Usage
    segments: Sequence[TokenSegment]
    question: str
    sources: PromptSources | None
    tenant: str | None


class RequestLog:
    """The last answered requests, the oldest first. The engine's loop adds; any thread may read."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._entries: deque[_Entry] = deque(maxlen=REMEMBERED)
        self._counts = [0] * (len(TTFT_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, request: BackendRequest, usage: Usage, sources: PromptSources | None) -> None:
        """Remember an answered request. sources: where its prompt came from, if that is known."""
        self._counts[bisect_left(TTFT_BUCKETS_S, usage.ttft_s)] += 1
        self._sum_s += usage.ttft_s
        self._entries.append(
            _Entry(
                request.request_id,
                self._now(),
                usage,
                request.segments,
                _end_of_question(request),
                sources,
                request.tenant,
            )
        )

    def forget(self, document_ids: Iterable[str]) -> None:
        """Forget what tenants asked. document_ids: of what is forgotten, tenants among it."""
        doomed = set(document_ids)
        kept = [one for one in self._entries if doomed.isdisjoint(forget_ids_of(one.tenant))]
        self._entries = deque(kept, maxlen=REMEMBERED)

    def recent(self) -> tuple[FinishedRequest, ...]:
        """Return the last answered requests, the oldest first."""
        return tuple(map(_describe, tuple(self._entries)))

    def times_to_first_token(self) -> TimesToFirstToken:
        """Return how long all requests took to their first token, since the engine started."""
        return TimesToFirstToken(tuple(self._counts), self._sum_s)


def _describe(entry: _Entry) -> FinishedRequest:
    reused = {one.document: one for one in entry.usage.reused}
    sources = entry.sources or PromptSources()
    documents = tuple(
        DocumentSource.of(
            trace_document(name, segment.start, segment.end, sources, reused.get(name))
        )
        for segment in entry.segments
        if (name := segment.document_id) is not None
    )
    return FinishedRequest(entry.request_id, entry.ended_at, entry.usage, documents, entry.question)


def _end_of_question(request: BackendRequest) -> str:
    """Return the end of the text behind the prompt's documents, or of the whole prompt without any."""
    text, start = request.prompt.text, request.spans[-1].end if request.spans else 0
    return text[max(start, len(text) - QUESTION_CHARACTERS) :].strip()
