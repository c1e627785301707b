"""Remember what was retrieved lately, and recognise it in the prompts that follow.

The retriever and the LLM of a chain do not know each other: between them the chain formats, filters and
reorders documents as it likes. The documents' texts connect them: a prompt is compared with the texts
of lately found documents. The thread or task that found them does not matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock

from ragcache_engine.latest_items import LatestItems
from ragcache_engine.prompt.landmarks import LandmarkIndex, Landmarks, landmarks_of, words_of
from ragcache_engine.prompt.segments import Span, find_documents
from ragcache_engine.prompt.template import Render
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import Document

CLAIMED_WITHIN_S = 60.0
"""So long after its beginning a retrieval may lead to a prompt that puts its question in other words."""

MOST_BYTES = 128 << 20
"""How much memory the documents of the remembered retrievals may take."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The documents found for one question, nearest first.

    started_s: when the search began, in seconds on the backend's clock.
    chain: the key of the chain that writes the prompt. template: how the user says the chain writes it.
    search_number: number of the TrackedSearch under which the engine works ahead; None if it does not.
    tenant: whose search it was; only this tenant's prompts can be made from it. None: anybody's.
    corpus: the name of the corpus that was searched; None if nobody told.
    planned: the ForgetLog's moment when the search began.
    """

    question: str
    documents: tuple[Document, ...]
    started_s: float
    chain: Hashable = None
    template: Render | None = None
    search_number: int | None = None
    tenant: str | None = None
    corpus: Hashable | None = None
    planned: int = 0

    def is_visible_to(self, tenant: str | None) -> bool:
        """Whether a prompt of this tenant may be made from the retrieval."""
        return self.tenant is None or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class PromptMatch:
    """What the engine recognised in a prompt.

    spans: the documents, in the order of the prompt.
    retrieval: the retrieval that this prompt was made from, if this is its first prompt. None if an
      earlier prompt has claimed the retrieval, or if no retrieved document stands in the prompt.
    corpora: by document, the name of the corpus in which it was found, as far as that is known.
    """

    spans: tuple[Span, ...] = ()
    retrieval: Retrieval | None = None
    corpora: Mapping[str, Hashable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """A retrieval with the landmarks of its documents, in the same order, and of its question."""

    retrieval: Retrieval
    landmarks: tuple[Landmarks, ...]
    question_landmarks: Landmarks

    def documents_possible(self, words: frozenset[str]) -> list[Document]:
        """Return the documents that may stand in a prompt with these words."""
        documents = zip(self.retrieval.documents, self.landmarks, strict=True)
        return [document for document, landmarks in documents if words.issuperset(landmarks)]

    def has_question_in(self, prompt: str, words: frozenset[str]) -> bool:
        question = self.retrieval.question
        is_possible = bool(question) and words.issuperset(self.question_landmarks)
        return is_possible and question in prompt


@dataclass(slots=True)
class RetrievalLog:
    """Remember the last `capacity` retrievals, as far as they take no more than `most_bytes` together.

    Safe to share between threads.

    Matching tries the newest retrieval first. It reads the prompt's words once, and then costs one
    substring search for each remembered document whose landmarks are among them; see landmarks.py.
    """

    capacity: int = 256
    most_bytes: int = MOST_BYTES
    _entries: LatestItems[int, _Remembered] = field(init=False)
    _index: LandmarkIndex = field(default_factory=LandmarkIndex, init=False)
    _unclaimed: set[int] = field(default_factory=set, init=False)
    _numbers: count[int] = field(default_factory=count, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def __post_init__(self) -> None:
        self._entries = LatestItems(
            self.most_bytes,
            lambda _, entry: sum(one.size_bytes for one in entry.retrieval.documents),
            most=self.capacity,
            on_drop=self._drop,
        )

    def _drop(self, number: int, entry: _Remembered) -> None:
        self._index.remove(number, entry.landmarks)
        self._unclaimed.discard(number)

    def add(self, retrieval: Retrieval) -> None:
        """Remember a retrieval; forget the oldest ones for which there is no room."""
        landmarks = tuple(landmarks_of(document.text) for document in retrieval.documents)
        entry = _Remembered(retrieval, landmarks, landmarks_of(retrieval.question))
        with self._lock:
            number = next(self._numbers)
            self._entries[number] = entry
            self._index.add(number, landmarks)
            self._unclaimed.add(number)

    def documents(self, tenant: str | None = None) -> list[Document]:
        """Return all documents remembered for this tenant, the ones retrieved last at the end."""
        with self._lock:
            return [
                document
                for entry in self._entries.values()
                if entry.retrieval.is_visible_to(tenant)
                for document in entry.retrieval.documents
            ]

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember these documents no longer, whoever retrieved them; nor a tenant's retrievals."""
        gone = set(document_ids)
        with self._lock:
            for number, entry in list(self._entries.items()):
                documents = entry.retrieval.documents
                is_tenants = not gone.isdisjoint(forget_ids_of(entry.retrieval.tenant))
                left = [
                    at for at, one in enumerate(documents) if not is_tenants and one.id not in gone
                ]
                if is_tenants or (documents and not left):
                    self._drop(number, self._entries.pop(number))
                elif len(left) < len(documents):
                    self._index.remove(number, entry.landmarks)
                    landmarks = tuple(entry.landmarks[at] for at in left)
                    self._index.add(number, landmarks)
                    retrieval = replace(
                        entry.retrieval, documents=tuple(documents[at] for at in left)
                    )
                    self._entries[number] = replace(entry, retrieval=retrieval, landmarks=landmarks)

    def match(
        self,
        prompt: str,
        tenant: str | None = None,
        *,
        claims: bool = True,
        now_s: float | None = None,
    ) -> PromptMatch:
        """Recognise remembered documents in the prompt, and claim the retrieval it was made from.

        tenant: whose prompt it is. What other tenants retrieved takes no part. claims: False leaves the
          retrieval unclaimed, and out of the result. now_s: the time on the backend's clock, if some may
          be too old.

        A retrieval can be claimed once, so that its time counts once. Of the unclaimed retrievals with
        documents in the prompt, those whose question stands there come first, then those with most
        documents there, then the newest. One whose question does not stand there is no prompt's any more
        after CLAIMED_WITHIN_S: nobody asked, and its documents are there by chance. Others whose
        questions stand there, as of two searches of an agent, led to this prompt, too: they are no later
        prompt's, even if that has this one as its history.
        """
        words = words_of(prompt)
        with self._lock:
            possible = [
                (number, self._entries[number])
                for number in sorted(self._index.find(words), reverse=True)
            ]
        entries = {
            number: entry for number, entry in possible if entry.retrieval.is_visible_to(tenant)
        }
        spans: tuple[Span, ...] = ()
        found: dict[str, int] = {}  # by document: the newest retrieval by which it was found
        for number, entry in entries.items():
            spans = find_documents(prompt, entry.documents_possible(words), known=spans)
            for span in spans:
                found.setdefault(span.document_id, number)
        if not found:
            return PromptMatch(spans)
        corpora = _find_corpora(entries, prompt, words, found)
        claimed = self._claim(prompt, words, tenant, found, now_s) if claims else None
        return PromptMatch(spans, claimed, corpora)

    def _claim(
        self,
        prompt: str,
        words: frozenset[str],
        tenant: str | None,
        found: dict[str, int],
        now_s: float | None,
    ) -> Retrieval | None:
        """Claim the retrieval that the prompt was made from; see `match`.

        found: the documents in the prompt, each with the newest retrieval by which it was found. For a
          retrieval count those found by it or by newer ones: an older one may know another text.
        """
        with self._lock:
            unclaimed = {
                number: entry
                for number in self._unclaimed
                if (entry := self._entries[number]).retrieval.is_visible_to(tenant)
            }
            if now_s is not None:
                oldest_s = now_s - CLAIMED_WITHIN_S
                unclaimed = {
                    number: entry
                    for number, entry in unclaimed.items()
                    if entry.retrieval.started_s > oldest_s or entry.has_question_in(prompt, words)
                }
            best = _find_source(unclaimed, prompt, words, found)
            if best is None:
                return None
            claimed = self._entries[best].retrieval
            self._unclaimed.discard(best)
            self._unclaimed.difference_update(
                number
                for number, entry in unclaimed.items()
                # Of an equal question somebody else's prompt may come.
                if entry.retrieval.question != claimed.question
                and entry.has_question_in(prompt, words)
                and _count_present(number, entry, found)
            )
            return claimed


def _find_source(
    entries: Mapping[int, _Remembered], prompt: str, words: frozenset[str], found: dict[str, int]
) -> int | None:
    """Return the number of the retrieval that the prompt was most likely made from; None without one."""
    best: tuple[tuple[bool, int], int] | None = None
    for number, entry in entries.items():
        if present := _count_present(number, entry, found):
            score = entry.has_question_in(prompt, words), present
            best = max(best, (score, number)) if best else (score, number)
    return best[1] if best else None


def _count_present(number: int, entry: _Remembered, found: Mapping[str, int]) -> int:
    """Count the documents of a retrieval that stand in a prompt; see `RetrievalLog._claim`."""
    return sum(found.get(one.id, -1) >= number for one in entry.retrieval.documents)


def _find_corpora(
    entries: Mapping[int, _Remembered], prompt: str, words: frozenset[str], found: dict[str, int]
) -> dict[str, Hashable]:
    """Return in which corpus each document was found.

    Several may have a document of the same id. That of the search that led to the prompt counts, whether
    or not an earlier prompt was made from it as well, and not that of a search that came between.
    """
    if all(entry.retrieval.corpus is None for entry in entries.values()):
        return {}
    source = _find_source(entries, prompt, words, found)
    numbers = dict(found)
    if source is not None:
        numbers |= {
            one.id: source
            for one in entries[source].retrieval.documents
            if found.get(one.id, -1) >= source
        }
    named = {name: entries[number].retrieval.corpus for name, number in numbers.items()}
    return {name: corpus for name, corpus in named.items() if corpus is not None}
