"""The documents that a server's clients registered, each tenant's corpora apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from sys import getsizeof
from threading import Condition, Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.checks import LONGEST_ID, shown
from ragcache_engine.corpora.document import (
    Change,
    Registered,
    require_corpus_name,
    require_document_id,
    write_metadata,
)
from ragcache_engine.corpora.fingerprints import FingerprintIndex, Powers
from ragcache_engine.corpora.nearness import Nearness
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument, UnknownDocument
from ragcache_engine.prompt import Span
from ragcache_engine.values import Document

DOCUMENT_BYTES = 2_000
"""About what a document takes beside its text and what is told of it: fingerprints, names, entries."""

LEFT_FREE = 4
"""A tenant has at most so many times as many bytes as are left for others."""

LONGEST_NEIGHBOUR = 8_000
"""A document of more characters is no neighbour: all of them would be computed for each donor."""

Owner = str | None
"""Whose a corpus is: a tenant's, or, with None, everybody's."""


@dataclass(slots=True)
class _Kept:
    """A document.

    metadata: as JSON. near: ids of the nearest ones, as of a version of the vectors. given_bytes: of a
    vector that no client told.
    """

    id: str
    text: str
    metadata: str
    digest: str
    digests: Sequence[bytes]
    size_bytes: int
    near: tuple[int, Sequence[str]] = (-1, ())
    given_bytes: int = 0


@dataclass(slots=True)
class _Corpus:
    """Documents by id. near_lock: for the vectors, as a search among them may take long.

    has_told_vectors: whether a client told any. Another model's vectors are not put beside them.
    """

    documents: dict[str, _Kept] = field(default_factory=dict)
    nearness: Nearness = field(default_factory=Nearness)
    near_lock: Lock = field(default_factory=Lock)
    has_told_vectors: bool = False


class ToEmbed(NamedTuple):
    """A document that is to get a vector."""

    owner: Owner
    corpus: str
    id: str
    text: str


class ListedDocument(NamedTuple):
    """A document as a corpus lists it; see Registered.digest."""

    id: str
    digest: str


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What a corpus holds.

    too_short: how many of its documents are too short to be recognised. with_vector: how many have a
    vector, so that their neighbours are known.
    """

    documents: int
    size_bytes: int
    too_short: int
    with_vector: int


class CorporaTotals(NamedTuple):
    """What all corpora hold together. recognised: how many documents were found in prompts so far."""

    documents: int
    size_bytes: int
    recognised: int


class Corpora:
    """Registered documents. Any thread may call its methods; most work as long as a corpus is large.

    most_bytes: how much memory those of all clients may take. embeds: whether documents for which no
    client told vectors wait for `take_to_embed`; see Embedding.

    In the knowledge tree a document's name is `name_of(owner, corpus, id)`: what one tenant registers and
    forgets is never another's. A document that is removed or gets another text is to be forgotten there:
    `owed` names it until `pay` is told that it was.
    """

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.most_bytes = most_bytes
        self.embeds = False
        self._corpora: dict[Owner, dict[str, _Corpus]] = {}
        self._indexes: dict[Owner, FingerprintIndex[tuple[str, str]]] = {}
        self._powers = Powers()
        self._sizes_bytes: Counter[Owner] = Counter()
        self._recognised = 0
        self._owed: dict[str, int] = {}  # with how often it came to be owed
        self._in_use: Counter[str] = Counter()
        self._changes = 0
        self._owing = Lock()  # for the three above, as the server's loop waits for it
        self._to_embed: dict[Owner, dict[tuple[str, str], None]] = {}
        self._lock = Lock()
        self._has_to_embed = Condition(self._lock)

    def put(self, owner: Owner, corpus: str, document: Registered) -> Change:
        """Register a document, in place of the one of its id in this corpus.

        Raises InvalidArgument for a name, an id or a vector that cannot be, CorpusTooLarge if there is no
        room for it; then nothing has changed.
        """
        require_corpus_name(corpus)
        name = name_of(owner, corpus, require_document_id(document.id))
        if len(name) > LONGEST_ID:
            raise InvalidArgument(
                f"the id {shown(document.id)} is too long: with the name of its corpus and tenant it has "
                f"more than {LONGEST_ID} characters"
            )
        text, metadata, digest = document.text, write_metadata(document.metadata), document.digest
        vector = None if document.vector is None else np.array(document.vector, np.float32)
        size_bytes = DOCUMENT_BYTES + getsizeof(text) + getsizeof(metadata)
        size_bytes += 0 if vector is None else vector.nbytes
        with self._corpus_of(owner, corpus) as known, self._lock:
            kept = known.documents.get(document.id)
            if kept and kept.digest == digest:
                return Change.SAME
            self._require_room(owner, size_bytes - (kept.size_bytes if kept else 0))
            if vector is not None and not known.has_told_vectors:
                self._take_told_vectors(owner, known, document.id, vector)
            else:
                known.nearness.put(document.id, vector)
            has_same_text = kept is not None and kept.text == text
            digests: Sequence[bytes] = kept.digests if kept else ()
            if not has_same_text:
                index = self._indexes.setdefault(owner, FingerprintIndex(self._powers))
                index.remove((corpus, document.id), digests)
                digests = index.add((corpus, document.id), text)
            known.documents[document.id] = _Kept(
                document.id, text, metadata, digest, digests, size_bytes
            )
            self._sizes_bytes[owner] += size_bytes - (kept.size_bytes if kept else 0)
            if kept and not has_same_text:
                self._owe(name)
            if self.embeds and not known.has_told_vectors:
                self._to_embed.setdefault(owner, {})[corpus, document.id] = None
                self._has_to_embed.notify()
            return Change.CHANGED if kept else Change.ADDED

    def remove(
        self, owner: Owner, corpus: str, document_ids: Iterable[str], *, owes: bool = True
    ) -> int:
        """Register these documents no more; return how many of them were registered.

        owes: whether they are to be forgotten; otherwise what is stored of them goes in its time.
        """
        with self._corpus_of(owner, corpus) as known, self._lock:
            gone = [
                kept
                for document_id in document_ids
                if (kept := known.documents.pop(document_id, None)) is not None
            ]
            for kept in gone:
                self._indexes[owner].remove((corpus, kept.id), kept.digests)
                self._sizes_bytes[owner] -= kept.size_bytes
                known.nearness.remove(kept.id)
                self._to_embed.get(owner, {}).pop((corpus, kept.id), None)
                if owes:
                    self._owe(name_of(owner, corpus, kept.id))
            return len(gone)

    def drop(self, owner: Owner, corpus: str) -> int:
        """Register no document of this corpus any more; return how many were there."""
        return self.remove(owner, corpus, [one.id for one in self.documents(owner, corpus)])

    def take_to_embed(self, most: int) -> list[ToEmbed]:
        """Return documents of one owner that wait for a vector, as soon as there are any.

        The next call is for the next owner: one with many documents holds up no other.
        """
        with self._has_to_embed:
            while True:
                self._has_to_embed.wait_for(lambda: any(self._to_embed.values()))
                owner, waiting = next((of, each) for of, each in self._to_embed.items() if each)
                some = [*islice(waiting, most)]
                del self._to_embed[owner]
                for one in some:
                    del waiting[one]
                if waiting:
                    self._to_embed[owner] = waiting
                corpora = self._corpora.get(owner, {})
                found = [
                    ToEmbed(owner, corpus, name, kept.text)
                    for corpus, name in some
                    if (known := corpora.get(corpus)) is not None
                    and not known.has_told_vectors
                    and (kept := known.documents.get(name)) is not None
                ]
                if found:
                    return found

    def embed_later(self, some: Iterable[ToEmbed]) -> None:
        """Let documents wait again that could not be embedded."""
        with self._has_to_embed:
            for one in some:
                self._to_embed.setdefault(one.owner, {})[one.corpus, one.id] = None
            self._has_to_embed.notify()

    def set_vector(self, embedded: ToEmbed, vector: NDArray[np.float32]) -> None:
        """Give a document its vector, unless it has changed meanwhile, or there is no room for it.

        Raises InvalidArgument for a vector that cannot be compared with the others.
        """
        owner, corpus, document_id, text = embedded
        with self._corpus_of(owner, corpus) as known, self._lock:
            kept = known.documents.get(document_id)
            if kept is None or kept.text != text or known.has_told_vectors:
                return
            self._require_room(owner, vector.nbytes)
            known.nearness.put(document_id, vector)
            kept.size_bytes += vector.nbytes - kept.given_bytes
            self._sizes_bytes[owner] += vector.nbytes - kept.given_bytes
            kept.given_bytes = vector.nbytes

    def owed(self) -> dict[str, int]:
        """Return the names that are to be forgotten; what `pay` wants. None of a prompt under way."""
        with self._owing:
            return {name: times for name, times in self._owed.items() if not self._in_use[name]}

    def pay(self, forgotten: dict[str, int]) -> None:
        """Note that these were forgotten, as `owed` returned them. What came to be owed since, stays."""
        with self._owing:
            for name, times in forgotten.items():
                if self._owed.get(name) == times:
                    del self._owed[name]

    def moment(self) -> int:
        """Return a number that grows whenever a document comes to be owed."""
        return self._changes

    @contextmanager
    def using(self, names: Iterable[str], moment: int) -> Iterator[bool]:
        """Keep track of a prompt with these documents until the block ends.

        moment: before they were found. Yields whether none of them is to be forgotten, and none came to
        be owed since that moment; a prompt is not to name them otherwise, and nothing is kept track of.
        Those that come to be owed meanwhile are forgotten when the last such prompt has ended: it may
        store them.
        """
        used = set(names)
        with self._owing:
            is_well = moment == self._changes and used.isdisjoint(self._owed)
            if is_well:
                self._in_use.update(used)
        try:
            yield is_well
        finally:
            if is_well:
                with self._owing:
                    self._in_use.subtract(used)
                    self._in_use = +self._in_use

    def document(self, owner: Owner, corpus: str, document_id: str) -> Registered:
        """Return a document, without its vector. Raises UnknownDocument."""
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            kept = known.documents.get(document_id)
        if kept is None:
            raise UnknownDocument(
                f"the corpus {shown(corpus)} has no document {shown(document_id)}"
            )
        return Registered(kept.id, kept.text, json.loads(kept.metadata))

    def documents(self, owner: Owner, corpus: str) -> list[ListedDocument]:
        """Return what documents a corpus has, in the order in which they came."""
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            return [ListedDocument(one.id, one.digest) for one in known.documents.values()]

    def summaries(self, owner: Owner) -> dict[str, CorpusSummary]:
        """Return what each corpus of an owner holds, by its name."""
        with self._lock:
            return {
                name: CorpusSummary(
                    len(known.documents),
                    sum(one.size_bytes for one in known.documents.values()),
                    sum(not one.digests for one in known.documents.values()),
                    len(known.nearness),
                )
                for name, known in self._corpora.get(owner, {}).items()
            }

    def totals(self) -> CorporaTotals:
        """Return what all corpora hold together."""
        with self._lock:
            corpora = [known for each in self._corpora.values() for known in each.values()]
            documents = sum(len(known.documents) for known in corpora)
            return CorporaTotals(documents, self._sizes_bytes.total(), self._recognised)

    def neighbour(self, name: str, *, may_search: bool = True) -> Document | None:
        """Return the nearest of `near`; None if there is none."""
        return next(iter(self.near(name, may_search=may_search)), None)

    def knows_near(self, name: str) -> bool:
        """Return whether `near` need not search for this document: it did so since vectors changed."""
        known, kept = self._find_kept(*split_name(name))
        return kept is None or kept.near[0] == known.nearness.version

    def _find_kept(
        self, owner: str | None, corpus: str, document_id: str
    ) -> tuple[_Corpus, _Kept | None]:
        with self._lock:
            known = self._corpora.get(owner, {}).get(corpus) or _Corpus()
            return known, known.documents.get(document_id)

    def near(self, name: str, *, may_search: bool = True) -> list[Document]:
        """Return the nearest other documents of one, with another text, nearest first.

        name: the document's in the knowledge tree, as the results' are. may_search: whether to search
          for them if the vectors have changed since they were found.
        """
        owner, corpus, document_id = split_name(name)
        known, kept = self._find_kept(owner, corpus, document_id)
        if kept is None:
            return []
        version, near = kept.near
        if version != known.nearness.version and may_search:
            with known.near_lock:
                version, found = known.nearness.version, known.nearness.nearest(document_id)
            with self._lock:
                near = [one for one in found if _may_stand_before(known, one, kept)]
                kept.near = version, near
        with self._lock:
            # Since they were found they may have got another text.
            others = [known.documents[one] for one in near if _may_stand_before(known, one, kept)]
        # Without white space around them, as they are found in prompts.
        return [Document(name_of(owner, corpus, one.id), one.text.strip()) for one in others]

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

    def _find_of(self, owner: Owner, prompt: str, taken: Sequence[Span]) -> Iterator[Span]:
        """Yield the documents of one owner in the gaps between the spans, which are in order."""
        index = self._indexes.get(owner)
        spans = [(span.start, span.end) for span in taken]
        for found in index.find(prompt, spans) if index else ():
            yield Span(found.start, found.end, name_of(owner, *found.name))

    @contextmanager
    def _corpus_of(self, owner: Owner, corpus: str) -> Iterator[_Corpus]:
        """Give a corpus, or a new one, whose vectors nobody else reads or changes until the block ends.

        Take the lock of all corpora inside: so a search among vectors holds up nobody else. A corpus
        that is empty at the end is dropped.
        """
        while True:
            with self._lock:
                known = self._corpora.setdefault(owner, {}).setdefault(corpus, _Corpus())
            with known.near_lock:
                with self._lock:
                    if self._corpora.get(owner, {}).get(corpus) is not known:
                        continue  # dropped meanwhile
                try:
                    yield known
                finally:
                    with self._lock:
                        if not known.documents:
                            del self._corpora[owner][corpus]
                        if not self._corpora[owner]:
                            del self._corpora[owner]
                            self._to_embed.pop(owner, None)
                            self._indexes.pop(owner, None)
                            self._sizes_bytes.pop(owner, None)
                return

    def _take_told_vectors(
        self, owner: Owner, known: _Corpus, document_id: str, vector: NDArray[np.float32]
    ) -> None:
        """Put the first vector that a client told in the place of all others: they are another model's.

        Raises InvalidArgument, and then nothing has changed.
        """
        told = Nearness()
        told.put(document_id, vector)
        known.nearness, known.has_told_vectors = told, True
        for kept in known.documents.values():
            kept.near = (-1, ())
            kept.size_bytes -= kept.given_bytes
            self._sizes_bytes[owner] -= kept.given_bytes
            kept.given_bytes = 0

    def _owe(self, name: str) -> None:
        with self._owing:
            self._owed[name] = self._owed.get(name, 0) + 1
            self._changes += 1

    def _require_room(self, owner: Owner, more_bytes: int) -> None:
        if more_bytes <= 0:
            return
        left = self.most_bytes - self._sizes_bytes.total() - more_bytes
        own = self._sizes_bytes[owner] + more_bytes
        if left < 0 or (owner is not None and own > LEFT_FREE * left):
            raise CorpusTooLarge(
                f"there is no room for more documents: the server keeps {_mib(self.most_bytes)} of them "
                f"for all its clients, {_mib(self._sizes_bytes[owner])} are yours already, and this one "
                f"takes {_mib(more_bytes)}; remove some, or start the server with a larger --max-corpora"
            )


def _may_stand_before(known: _Corpus, near: str, kept: _Kept) -> bool:
    other = known.documents.get(near)
    return other is not None and other.text != kept.text and len(other.text) <= LONGEST_NEIGHBOUR


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.3f} MiB"


def name_of(owner: Owner, corpus: str, document_id: str) -> str:
    """Return a registered document's name in the knowledge tree. No two documents share one."""
    return f"{corpus}/{document_id}" if owner is None else f"{owner}:{corpus}/{document_id}"


def split_name(name: str) -> tuple[Owner, str, str]:
    """Return the owner, the corpus and the id that `name_of` made a document's name of."""
    head, _, document_id = name.partition("/")
    owner, _, corpus = head.rpartition(":")
    return owner or None, corpus, document_id
