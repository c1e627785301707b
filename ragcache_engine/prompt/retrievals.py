"""Remember what was retrieved lately, and recognise it in the prompts that follow.

The retriever and the LLM of a chain do not know each other: between them the chain formats, filters and
reorders documents as it likes. The documents' texts connect them: a prompt is compared with the texts
of lately found documents. The thread or task that found them does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock

from ragcache_engine.prompt.segments import Span, find_documents
from ragcache_engine.prompt.template import Render
from ragcache_engine.values import Document


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The documents found for one question, nearest first.

    started_s: when the search began, in seconds on the backend's clock.
    chain: the key of the chain that writes the prompt. template: how the user says the chain writes it.
    search_number: number of the TrackedSearch under which the engine works ahead; None if it does not.
    tenant: whose search it was; only this tenant's prompts can be made from it. None: anybody's.
    """

    question: str
    documents: tuple[Document, ...]
    started_s: float
    chain: Hashable = None
    template: Render | None = None
    search_number: int | None = None
    tenant: str | None = None

    def is_visible_to(self, tenant: str | None) -> bool:
        """Whether a prompt of this tenant may be made from the retrieval."""
        return self.tenant is None or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class PromptMatch:
    """What the engine recognised in a prompt.

    spans: the documents, in the order of the prompt.
    retrieval: the retrieval that this prompt was made from, if this is its first prompt. None if an
      earlier prompt has claimed the retrieval, or if no retrieved document stands in the prompt.
    """

    spans: tuple[Span, ...] = ()
    retrieval: Retrieval | None = None


@dataclass(slots=True)
class RetrievalLog:
    """Remember the last `capacity` retrievals. Safe to share between threads.

    Matching tries the newest retrieval first. It costs one substring search for each remembered document
    that still fits into the part of the prompt where nothing was recognised yet. Usually the documents
    of the newest retrieval fill the prompt, and all others are too long for what is left.
    """

    capacity: int = 256
    _entries: OrderedDict[int, Retrieval] = field(default_factory=OrderedDict, init=False)
    _unclaimed: set[int] = field(default_factory=set, init=False)
    _numbers: count[int] = field(default_factory=count, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def add(self, retrieval: Retrieval) -> None:
        """Remember a retrieval; forget the oldest one beyond `capacity`."""
        with self._lock:
            number = next(self._numbers)
            self._entries[number] = retrieval
            self._unclaimed.add(number)
            if len(self._entries) > self.capacity:
                oldest, _ = self._entries.popitem(last=False)
                self._unclaimed.discard(oldest)

    def documents(self, tenant: str | None = None) -> list[Document]:
        """Return all documents remembered for this tenant, the ones retrieved last at the end."""
        with self._lock:
            return [
                document
                for entry in self._entries.values()
                if entry.is_visible_to(tenant)
                for document in entry.documents
            ]

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember these documents no longer, whoever retrieved them."""
        gone = set(document_ids)
        with self._lock:
            for number, entry in self._entries.items():
                left = tuple(one for one in entry.documents if one.id not in gone)
                if len(left) < len(entry.documents):
                    self._entries[number] = replace(entry, documents=left)

    def match(self, prompt: str, tenant: str | None = None) -> PromptMatch:
        """Recognise remembered documents in the prompt, and claim the retrieval it was made from.

        tenant: whose prompt it is. What other tenants retrieved takes no part.

        A retrieval can be claimed once, so that its time counts once. Of the unclaimed retrievals with
        documents in the prompt, those whose question stands there come first, then those with most
        documents there, then the newest.
        """
        with self._lock:
            entries = [
                (number, entry)
                for number, entry in reversed(self._entries.items())
                if entry.is_visible_to(tenant)
            ]
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
            if number not in self._unclaimed:  # another prompt has claimed it meanwhile
                return None
            self._unclaimed.discard(number)
            return self._entries.get(number)


def _score(prompt: str, spans: Sequence[Span], retrieval: Retrieval) -> tuple[bool, int] | None:
    """Return whether the question and how many documents stand in the prompt; None without documents."""
    present = {span.document_id for span in spans}
    found = sum(document.id in present for document in retrieval.documents)
    if not found:
        return None
    return bool(retrieval.question) and retrieval.question in prompt, found
