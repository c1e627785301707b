"""Knows each document's nearest neighbour in its corpus, behind which its tensors are stored.

A document that was computed behind a related one is a better donor than one that was computed alone: its
tensors have seen context of the kind that prompts bring. The neighbour depends on the corpus alone, so
answers do not depend on what others asked before. Nor do those to one corpus depend on another that has
documents of the same ids.
Source: FusionRAG (arXiv:2601.12904).
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from sys import getsizeof
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

from ragcache_engine.anywhere.beginnings import SEPARATOR
from ragcache_engine.anywhere.corpus import Corpus
from ragcache_engine.anywhere.found_documents import Found, FoundDocuments
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.prompt import ForgetLog
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import Document, TokenizedPrompt

logger = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""How much memory the neighbours of documents may take; the longest unused are forgotten, and looked up
again when their documents are retrieved. A neighbour of 200 tokens takes 1.5 KB."""

ENTRY_BYTES = 600
"""What an entry takes beside its tokens and names: its key, its place, and its values."""

FOLLOWING = "A"
"""Stands for the next document while one is tokenised."""

ENOUGH = 200
"""So many characters before its end tell which token a document ends with."""

Tokenize = Callable[[str, bool], TokenizedPrompt]

NOWHERE: Mapping[str, Hashable] = MappingProxyType({})

_Key = tuple[str | None, Hashable, str]  # tenant, name of the corpus, document


class _Entry(NamedTuple):
    """The context has its tokens as an array: in a tuple, each takes nine times as many bytes."""

    version: Hashable
    context: Context | None

    def unpacked(self) -> Context | None:
        if self.context is None:
            return None
        return self.context._replace(token_ids=tuple(self.context.token_ids))


def _entry_bytes(key: _Key, entry: _Entry) -> int:
    size_bytes = ENTRY_BYTES + getsizeof(key[2])
    if (context := entry.context) is not None:
        size_bytes += getsizeof(context.document) + getsizeof(context.token_ids)
        size_bytes += getsizeof(context.text)
    return size_bytes


def _usual_bytes(key: tuple[str | None, str], corpus: Hashable) -> int:
    return ENTRY_BYTES + getsizeof(key[1])


class NeighbourBook:
    """Remembers the neighbours of documents, as token ids. Any thread may call its methods.

    tokenize: as Backend.tokenize; None for a backend that reads text: texts are remembered.
    forgotten: tells what is forgotten during a look-up.
    found: remembers what searches found, and what is near that; None where nothing is prepared.
    """

    def __init__(
        self,
        tokenize: Tokenize | None,
        forgotten: ForgetLog | None = None,
        found: FoundDocuments | None = None,
    ) -> None:
        self._tokenize = tokenize
        self.found = found
        self._forgotten = forgotten or ForgetLog()
        self._entries: LatestItems[_Key, _Entry] = LatestItems(MOST_BYTES, _entry_bytes)
        self._usual: LatestItems[tuple[str | None, str], Hashable] = LatestItems(
            MOST_BYTES, _usual_bytes
        )
        self._lock = Lock()

    def learn(
        self,
        documents: Sequence[Document],
        corpus: Corpus,
        tenant: str | None,
        *,
        is_usual: bool = False,
        planned: int | None = None,
    ) -> None:
        """Look up the neighbours of those documents that are new, or whose corpus has changed.

        is_usual: whether prompts that name these documents themselves mean those of this corpus.
        planned: the ForgetLog's moment before the search that found them; None if none did.
        If the look-up fails, the documents are stored alone until the next one.
        """
        with self._lock:
            unknown = [
                document
                for document in documents
                if not (entry := self._entries.get((tenant, corpus.name, document.id)))
                or entry.version != corpus.version
            ]
            if is_usual:
                for document in documents:
                    self._usual[tenant, document.id] = corpus.name
                    self._usual.touch((tenant, document.id))
        if self.found is not None and planned is not None:
            self.found.note(documents, corpus, tenant, planned)
        if not unknown:
            return
        began = self._forgotten.moment
        try:
            near = corpus.look_up(unknown)
            entries = {
                one.id: self._as_context(one, found[0] if found else None)
                for one, found in zip(unknown, near, strict=True)
            }
        except Exception:  # a search must not fail because of it
            logger.warning("could not look up neighbours of documents", exc_info=True)
            with self._lock:
                for document in unknown:
                    self._entries.pop((tenant, corpus.name, document.id), None)
            return
        with self._lock:
            for name, context in entries.items():
                behind = [context.document] if context else []
                if self._forgotten.since(began, [name, *behind, *forget_ids_of(tenant)]):
                    continue  # the look-up saw what was there before
                self._entries[tenant, corpus.name, name] = _Entry(corpus.version, context)
        if self.found is not None and planned is not None:
            kept = [one for found in near for one in found]
            kept = [
                one
                for one in kept
                if not self._forgotten.since(began, [one.id, *forget_ids_of(tenant)])
            ]
            self.found.note(kept, corpus, tenant, planned)

    def contexts(
        self,
        document_ids: Iterable[str],
        tenant: str | None,
        corpora: Mapping[str, Hashable] = NOWHERE,
    ) -> dict[str, Context]:
        """Return the contexts of those documents that have a known neighbour.

        corpora: by document, the name of the corpus in which it was found. A document that is left out
          is one of its usual corpus; see `learn`.
        """
        found: dict[str, Context] = {}
        with self._lock:
            for name in document_ids:
                context = self._find(name, tenant, corpora)
                if context is not None:
                    found[name] = context
        return found

    def contexts_of_found(self, found: Found, tenant: str | None) -> dict[str, Context]:
        """Look up the neighbour of a document that a search found, and return its context.

        tenant: for whom it is prepared. What was found for everybody stays everybody's.
        """
        name, corpus = found.document.id, found.corpus
        if corpus is None:
            return {}
        self.learn([found.document], corpus, found.tenant)
        return self.contexts([name], tenant, {name: corpus.name})

    def _find(
        self, document: str, tenant: str | None, corpora: Mapping[str, Hashable]
    ) -> Context | None:
        for owner in (tenant, None):  # retrievals without a tenant are everybody's
            if document in corpora:
                key = owner, corpora[document], document
            elif (owner, document) in self._usual:
                key = owner, self._usual[owner, document], document
            else:
                continue
            if (entry := self._entries.get(key)) is not None:
                self._entries.touch(key)
                return entry.unpacked()
        return None

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember neither these documents nor that they are others' neighbours; nor a tenant's."""
        names = set(document_ids)
        with self._lock:
            doomed = [
                key
                for key, entry in self._entries.items()
                if not names.isdisjoint((key[2], *forget_ids_of(key[0])))
                or (entry.context and entry.context[0] in names)
            ]
            for key in doomed:
                del self._entries[key]
            usuals = [
                one for one in self._usual if not names.isdisjoint((one[1], *forget_ids_of(one[0])))
            ]
            for usual in usuals:
                del self._usual[usual]

    def _as_context(self, document: Document, neighbour: Document | None) -> Context | None:
        if neighbour is None:
            return None
        if self._tokenize is None:
            return Context(neighbour.id, (), text=neighbour.text)
        context = context_behind(self._tokenize, document.text, neighbour)
        return context._replace(token_ids=array("I", context.token_ids))


def context_behind(tokenize: Tokenize, text: str, neighbour: Document) -> Context:
    """Return the context of a document, whose text this is, behind a neighbour."""
    tokens, _ = _tokenize_before_text(tokenize, neighbour.text)
    _, last_token = _tokenize_before_text(tokenize, text[-ENOUGH:])
    return Context(neighbour.id, tokens, last_token)


def _tokenize_before_text(tokenize: Tokenize, text: str) -> tuple[tuple[int, ...], int | None]:
    """Tokenise a document with SEPARATOR as in a prompt, where another document follows.

    At the end of a string, two line ends are often one token; before a letter they are two. Returns
    the tokens, and the last one that begins in the document, as prompts are cut; None if the
    tokenizer cannot tell.
    """
    end = len(text) + len(SEPARATOR)
    found = tokenize(text + SEPARATOR + FOLLOWING, False)
    own = [at for at, (start, _) in enumerate(found.offsets) if start < len(text)]
    last = found.token_ids[own[-1]] if own else None
    before = [at for at, (_, upto) in enumerate(found.offsets) if upto <= end]
    if before and found.offsets[before[-1]][1] == end:
        return tuple(found.token_ids[: len(before)]), last
    return tuple(tokenize(text + SEPARATOR, False).token_ids), last


ContextsOf = Callable[[Iterable[str], str | None, Mapping[str, Hashable]], Mapping[str, Context]]
"""Returns the contexts of documents for a tenant's prompt; see NeighbourBook.contexts."""


def without_contexts(
    document_ids: Iterable[str], tenant: str | None, corpora: Mapping[str, Hashable] = NOWHERE
) -> Mapping[str, Context]:
    """Return no context: documents are stored alone."""
    return {}
