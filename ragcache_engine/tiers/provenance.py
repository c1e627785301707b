"""Where the tokens of a prompt and of its documents came from, and why the rest was computed.

| value | tells |
|---|---|
| PromptSources | which of a prompt's tokens were cached when it was admitted, in which tier |
| ReuseReport, DocumentReuse | what a prompt that borrowed has reused, document by document |
| TracedDocument | both of one document, for tables |
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, DocumentSpan
from ragcache_engine.values import DocumentReuse


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


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """What a prompt that borrowed has reused, document by document, in its order.

    joined_tokens: tokens between documents that were computed anew.
    """

    documents: Sequence[DocumentReuse]
    joined_tokens: int = 0

    @property
    def borrowed_by_tier(self) -> dict[str, int]:
        """Tokens borrowed from tensors that were there already, by tier."""
        tokens = {tier.value: 0 for tier in Tier}
        for document in self.documents:
            if document.tier is not None:
                tokens[document.tier] += document.borrowed + document.joined
        return tokens

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of borrowed documents that were computed anew."""
        return sum(document.recomputed for document in self.documents)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, to send to another process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ReuseReport:
        """Make a report from what to_dict() returned."""
        documents = tuple(DocumentReuse(**document) for document in content["documents"])
        return cls(documents, content["joined_tokens"])


@dataclass(frozen=True, slots=True)
class TracedDocument:
    """One document of a prompt that was answered.

    cached: tokens that were reused exactly, by tier. borrowed: tokens that were taken from another
      context, by tier. recomputed: tokens that were computed anew because the document was borrowed. All
      others were computed; why: for which reason, empty if nobody knows.
    """

    name: str
    tokens: int
    cached: Mapping[str, int] = field(default_factory=dict)
    borrowed: Mapping[str, int] = field(default_factory=dict)
    recomputed: int = 0
    why: str = ""

    def to_list(self) -> list[Any]:
        """Return plain values, to send to another process."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_list(cls, content: Sequence[Any]) -> Self:
        """Read what to_list() returned."""
        return cls(*content)


def trace_document(
    name: str, start: int, end: int, sources: PromptSources, reuse: DocumentReuse | None
) -> TracedDocument:
    """Tell where a document's tokens, [start, end) of its prompt, came from.

    reuse: what a prompt that borrowed reports of the document.
    """
    tokens = end - start
    cached = sources.tokens_by_tier(start, end)
    rest = tokens - sum(cached.values())
    is_borrowed = reuse is not None and reuse.borrowed + reuse.recomputed > 0
    if reuse is None or not is_borrowed:
        return TracedDocument(
            name, tokens, cached, why=sources.why(name, tokens, sum(cached.values()))
        )
    recomputed = min(rest, reuse.recomputed)
    rest -= recomputed
    lent = min(rest, reuse.borrowed + reuse.joined)
    borrowed = {} if reuse.tier is None else {reuse.tier: lent}
    rest -= sum(borrowed.values())
    if reuse.tier is not None:  # what is left joins it to the document before it
        why = str(Reason.JOINT) if rest else ""
    else:
        why = sources.why(name, tokens, tokens - rest)
    return TracedDocument(name, tokens, cached, borrowed, recomputed, why)


def report_borrowing(
    plan: BorrowPlan,
    found: Mapping[int, Tier | None],
    shared_tokens: int = 0,
    prefix: Mapping[Tier, int] | None = None,
    found_tokens: int = 0,
) -> ReuseReport:
    """Report what a request with this plan has reused.

    found: for each donor of the plan where its tensors were when the request came.
    shared_tokens: how many leading tokens were on the device from an earlier prompt with this very plan.
    prefix: how many tokens of the first donor each tier had then; None if the device had all.
    found_tokens: as shared_tokens, but also behind the plan's end.
    """
    _, recomputed = plan.after(shared_tokens)
    *before, last = plan.documents[: plan.exact_documents]
    documents = [_report_exact(span, _find_tier(prefix, span.end)) for span in before]
    documents.append(_report_exact(last, found.get(0)))
    donors = {place: donor for donor, place in enumerate(plan.lent)}
    in_place = 0  # tokens of documents that are borrowed from nowhere
    for place, span in enumerate(plan.documents[plan.exact_documents :], plan.exact_documents):
        anew = bisect_left(recomputed, span.end) - bisect_left(recomputed, span.start)
        # No donor lends the end of the last document, nor whole ones behind it.
        anew += max(0, span.end - max(span.start, plan.end, found_tokens))
        is_shared = max(shared_tokens, found_tokens) >= span.end or (
            place in donors and shared_tokens >= plan.end
        )
        tier = Tier.DEVICE if is_shared else found.get(donors[place]) if place in donors else None
        tokens = span.end - span.start
        if place not in donors and not is_shared:
            in_place += anew
            documents.append(_report_exact(span, None))
            continue
        joined = plan.count_copied(plan.documents[place - 1].end, span.start)
        documents.append(
            DocumentReuse(
                span.document, tokens, tier.value if tier else None, tokens - anew, anew, joined
            )
        )
    computed = len(recomputed) + max(0, plan.documents[-1].end - max(plan.end, found_tokens))
    of_documents = in_place + sum(document.recomputed for document in documents)
    return ReuseReport(tuple(documents), computed - of_documents)


def _find_tier(prefix: Mapping[Tier, int] | None, end: int) -> Tier | None:
    """Return the tier that had the last of the first `end` tokens; None if they were computed."""
    if prefix is None:
        return Tier.DEVICE
    for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK):
        end -= prefix.get(tier, 0)
        if end <= 0:
            return tier
    return None


def _report_exact(span: DocumentSpan, tier: Tier | None) -> DocumentReuse:
    return DocumentReuse(span.document, span.end - span.start, tier.value if tier else None)
