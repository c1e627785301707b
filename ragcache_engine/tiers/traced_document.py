"""Where the tokens of one document of a prompt came from, and why the rest was computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ragcache_engine.tiers.borrowing.report import DocumentReuse
from ragcache_engine.tiers.prompt_sources import PromptSources, Reason


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
