"""The documents that a server's clients registered, each tenant's corpora apart."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

import numpy as np

from ragcache_engine.checks import LONGEST_ID, shown
from ragcache_engine.corpora.document import Change, Registered
from ragcache_engine.corpora.fingerprints import FingerprintIndex
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument, UnknownDocument
from ragcache_engine.prompt import Span
from ragcache_engine.search.nearness import Nearness
from ragcache_engine.values import Document

LEFT_FREE = 4
"""A tenant has at most so many times as many bytes as are left for others."""

Owner = str | None
"""Whose a corpus is: a tenant's, or, with None, everybody's."""


@dataclass(slots=True)
class _Kept:
    """A document without its vector. neighbour: the nearest one's id, as of a version of the vectors."""

    document: Registered
    digests: Sequence[bytes]
    size_bytes: int
    neighbour: tuple[int, str | None] = (-1, None)


@dataclass(slots=True)
class _Corpus:
    documents: dict[str, _Kept] = field(default_factory=dict)
    nearness: Nearness = field(default_factory=Nearness)


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What a corpus holds. too_short: how many of its documents are too short to be recognised."""

    documents: int
    size_bytes: int
    too_short: int


class CorporaTotals(NamedTuple):
    """What all corpora hold together. recognised: how many documents were found in prompts so far."""

    documents: int
    size_bytes: int
    recognised: int


class Corpora:
    """Registered documents. Any thread may call its methods.

    most_bytes: how much memory those of all clients may take.

    In the knowledge tree a document's name is `name_of(owner, corpus, id)`: what one tenant registers and
    forgets is never another's.
    """

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self._most_bytes = most_bytes
        self._corpora: dict[Owner, dict[str, _Corpus]] = {}
        self._indexes: dict[Owner, FingerprintIndex[tuple[str, str]]] = {}
        self._sizes_bytes: Counter[Owner] = Counter()
        self._recognised = 0
        self._lock = Lock()

    def put(self, owner: Owner, corpus: str, document: Registered) -> Change:
        """Register a document, in place of the one of its id in this corpus.

        Raises InvalidArgument for an id that is too long or a vector that cannot be, CorpusTooLarge if
        there is no room for it; then nothing has changed.
        """
        if len(name_of(owner, corpus, document.id)) > LONGEST_ID:
            raise InvalidArgument(
                f"the id {shown(document.id)} is too long: with the name of its corpus and tenant it has "
                f"more than {LONGEST_ID} characters"
            )
        size_bytes, text = document.size_bytes, document.text
        vector = None if document.vector is None else np.array(document.vector, np.float32)
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            kept = known.documents.get(document.id)
            if vector is not None:
                known.nearness.require(vector)
            self._require_room(owner, size_bytes - (kept.size_bytes if kept else 0))
            is_same = kept is not None and kept.document.text == text
            if kept:
                self._sizes_bytes[owner] -= kept.size_bytes
                if not is_same:
                    self._indexes[owner].remove((corpus, document.id), kept.digests)
            digests: Sequence[bytes] = kept.digests if kept else ()
            if not is_same:
                index = self._indexes.setdefault(owner, FingerprintIndex())
                digests = index.add((corpus, document.id), text)
            self._corpora.setdefault(owner, {})[corpus] = known
            known.documents[document.id] = _Kept(
                replace(document, vector=None), digests, size_bytes
            )
            known.nearness.put(document.id, vector)
            self._sizes_bytes[owner] += size_bytes
        return Change.SAME if is_same else Change.CHANGED if kept else Change.ADDED

    def remove(self, owner: Owner, corpus: str, document_id: str) -> None:
        """Register a document no more. Raises UnknownDocument."""
        with self._lock:
            kept = self._require(owner, corpus, document_id)
            known = self._corpora[owner][corpus]
            self._take_out(owner, corpus, kept)
            del known.documents[document_id]
            known.nearness.remove(document_id)
            self._drop_if_empty(owner, corpus)

    def drop(self, owner: Owner, corpus: str) -> list[str]:
        """Register no document of this corpus any more; return the ids of those that were there."""
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            ids = [*known.documents]
            for kept in known.documents.values():
                self._take_out(owner, corpus, kept)
            known.documents.clear()
            self._drop_if_empty(owner, corpus)
            return ids

    def document(self, owner: Owner, corpus: str, document_id: str) -> Registered:
        """Return a document, without its vector. Raises UnknownDocument."""
        with self._lock:
            return self._require(owner, corpus, document_id).document

    def documents(self, owner: Owner, corpus: str) -> list[Registered]:
        """Return the documents of a corpus, without vectors."""
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            return [one.document for one in known.documents.values()]

    def summaries(self, owner: Owner) -> dict[str, CorpusSummary]:
        """Return what each corpus of an owner holds, by its name."""
        with self._lock:
            return {
                name: CorpusSummary(
                    len(known.documents),
                    sum(one.size_bytes for one in known.documents.values()),
                    sum(not one.digests for one in known.documents.values()),
                )
                for name, known in self._corpora.get(owner, {}).items()
            }

    def totals(self) -> CorporaTotals:
        """Return what all corpora hold together."""
        with self._lock:
            corpora = [known for each in self._corpora.values() for known in each.values()]
            documents = sum(len(known.documents) for known in corpora)
            return CorporaTotals(documents, self._sizes_bytes.total(), self._recognised)

    def neighbour(self, name: str) -> Document | None:
        """Return the nearest other document of one, with another text; None if that is not known.

        name: the document's in the knowledge tree, as the result's is.
        """
        owner, corpus, document_id = _read_name(name)
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            kept = known.documents.get(document_id)
            if kept is None:
                return None
            version, near = kept.neighbour
            if version != known.nearness.version:
                near = next(
                    (
                        one
                        for one in known.nearness.nearest(document_id)
                        if known.documents[one].document.text != kept.document.text
                    ),
                    None,
                )
                kept.neighbour = known.nearness.version, near
            if near is None:
                return None
            text = known.documents[near].document.text
        return Document(name_of(owner, corpus, near), text)

    def has_some_for(self, tenant: str | None) -> bool:
        """Return whether a prompt of this tenant may have a registered document."""
        return tenant in self._indexes or None in self._indexes

    def find(self, tenant: str | None, prompt: str) -> tuple[Span, ...]:
        """Return the registered documents in a prompt, in its order, by their names in the tree.

        tenant: whose prompt it is: its own documents are found, and in the gaps between them those of
          everybody. Of several with one text, each is found once, and the last of them wherever else the
          text stands.
        """
        spans: list[Span] = []
        with self._lock:
            for owner in dict.fromkeys((tenant, None)):
                spans = sorted([*spans, *self._find_of(owner, prompt, spans)])
            self._recognised += len(spans)
        return tuple(spans)

    def _find_of(self, owner: Owner, prompt: str, taken: Sequence[Span]) -> list[Span]:
        """Return the documents of one owner in the gaps between the spans, which are in order."""
        index, spans = self._indexes.get(owner), []
        used: Counter[Sequence[tuple[str, str]]] = Counter()
        for found in index.find(prompt) if index else ():
            at = bisect_right(taken, found.start, key=lambda span: span.end)
            if at < len(taken) and taken[at].start < found.end:
                continue
            corpus, document_id = found.names[min(used[found.names], len(found.names) - 1)]
            used[found.names] += 1
            spans.append(Span(found.start, found.end, name_of(owner, corpus, document_id)))
        return spans

    def _require(self, owner: Owner, corpus: str, document_id: str) -> _Kept:
        known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
        kept = known.documents.get(document_id)
        if kept is None:
            raise UnknownDocument(
                f"the corpus {shown(corpus)} has no document {shown(document_id)}"
            )
        return kept

    def _require_room(self, owner: Owner, more_bytes: int) -> None:
        if more_bytes <= 0:
            return
        left = self._most_bytes - self._sizes_bytes.total() - more_bytes
        own = self._sizes_bytes[owner] + more_bytes
        if left < 0 or (owner is not None and own > LEFT_FREE * left):
            raise CorpusTooLarge(
                f"there is no room for more documents: the server keeps {_mib(self._most_bytes)} of them "
                f"for all its clients, {_mib(self._sizes_bytes[owner])} are yours already, and this one "
                f"takes {_mib(more_bytes)}; remove some, or start the server with a larger --max-corpora"
            )

    def _take_out(self, owner: Owner, corpus: str, kept: _Kept) -> None:
        self._indexes[owner].remove((corpus, kept.document.id), kept.digests)
        self._sizes_bytes[owner] -= kept.size_bytes

    def _drop_if_empty(self, owner: Owner, corpus: str) -> None:
        corpora = self._corpora.get(owner, {})
        if corpus in corpora and not corpora[corpus].documents:
            del corpora[corpus]
            if not corpora:
                del self._corpora[owner], self._indexes[owner], self._sizes_bytes[owner]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.3f} MiB"


def name_of(owner: Owner, corpus: str, document_id: str) -> str:
    """Return a registered document's name in the knowledge tree. No two documents share one."""
    return f"{corpus}/{document_id}" if owner is None else f"{owner}:{corpus}/{document_id}"


def _read_name(name: str) -> tuple[Owner, str, str]:
    """Return the owner, the corpus and the id that a document's name is made of."""
    head, _, document_id = name.partition("/")
    owner, _, corpus = head.rpartition(":")
    return owner or None, corpus, document_id
