"""Remember what was retrieved lately, and recognise it in the prompts that follow.

The retriever and the LLM of a chain do not know each other: between them the pipeline formats,
filters and reorders as it likes. What joins them is the text: a prompt is matched against the
documents found lately, not against the thread or task that found them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Lock

from ragcache_engine.prompt.segments import Span, find_documents
from ragcache_engine.prompt.template import Render
from ragcache_engine.values import Document


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The documents found for one question, nearest first.

    started_s: when the search began, on the backend's clock.
    chain: tells apart what writes the prompts. template: how it is said to write them.
    search: what is being done beforehand goes by this number; None: nothing.
    """

    question: str
    documents: tuple[Document, ...]
    started_s: float
    chain: Hashable = None
    template: Render | None = None
    search: int | None = None


@dataclass(frozen=True, slots=True)
class PromptMatch:
    """What was recognised in a prompt.

    retrieval: the one this prompt is the first to be made from; None for a prompt made from
      documents that an earlier prompt already used, or from none.
    """

    spans: tuple[Span, ...] = ()
    retrieval: Retrieval | None = None


@dataclass(slots=True)
class RetrievalLog:
    """The last `capacity` retrievals, newest first to be recognised. Safe to share between threads.

    Matching costs one substring search per remembered document that still fits the unexplained part
    of the prompt: usually the newest retrieval explains it and the others are passed over by length.
    """

    capacity: int = 256
    _entries: OrderedDict[int, Retrieval] = field(default_factory=OrderedDict, init=False)
    _unclaimed: set[int] = field(default_factory=set, init=False)
    _numbers: count[int] = field(default_factory=count, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def add(self, retrieval: Retrieval) -> None:
        with self._lock:
            number = next(self._numbers)
            self._entries[number] = retrieval
            self._unclaimed.add(number)
            if len(self._entries) > self.capacity:
                oldest, _ = self._entries.popitem(last=False)
                self._unclaimed.discard(oldest)

    def documents(self) -> list[Document]:
        """All that are remembered, those retrieved last coming last."""
        with self._lock:
            return [document for entry in self._entries.values() for document in entry.documents]

    def match(self, prompt: str) -> PromptMatch:
        """Recognise remembered documents in the prompt.

        Of the retrievals not yet claimed whose documents stand in the prompt, the one with most of
        its question and documents there is claimed by it, so that each retrieval's time counts once.
        """
        with self._lock:
            entries = list(reversed(self._entries.items()))
            unclaimed = set(self._unclaimed)
        spans: tuple[Span, ...] = ()
        best: tuple[tuple[bool, int], int] | None = None
        for number, retrieval in entries:
            spans = find_documents(prompt, retrieval.documents, known=spans)
            if number in unclaimed and (score := _score(prompt, spans, retrieval)) is not None:
                best = max(best, (score, number)) if best else (score, number)
        return PromptMatch(spans, self._claim(best[1]) if best else None)

    def _claim(self, number: int) -> Retrieval | None:
        with self._lock:
            if number not in self._unclaimed:  # another prompt was quicker
                return None
            self._unclaimed.discard(number)
            return self._entries.get(number)


def _score(prompt: str, spans: Sequence[Span], retrieval: Retrieval) -> tuple[bool, int] | None:
    present = {span.document_id for span in spans}
    found = sum(document.id in present for document in retrieval.documents)
    if not found:
        return None
    return bool(retrieval.question) and retrieval.question in prompt, found
