"""Knows each document's nearest neighbour in its corpus, behind which its tensors are stored.

A document that was computed behind a related one is a better donor than one that was computed alone: its
tensors have seen context of the kind that prompts bring. The neighbour depends on the corpus alone, so
answers do not depend on what others asked before.
Source: FusionRAG (arXiv:2601.12904).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from ragcache_engine.protocols import Context
from ragcache_engine.values import Document

logger = logging.getLogger(__name__)

MOST_KNOWN = 1 << 20
"""How many documents' neighbours to remember; the longest unused are forgotten."""

SEPARATOR = "\n\n"
"""Stands between a neighbour and the document behind it."""

FindNeighbours = Callable[[Sequence[Document]], Sequence[Document | None]]
"""Returns, for each document, the nearest other one in its corpus; None where that is not known."""


class Corpus(NamedTuple):
    """Where the neighbours of retrieved documents are looked up.

    version: differs whenever the corpus has other documents. find: looks neighbours up.
    """

    version: Hashable
    find: FindNeighbours


class _Entry(NamedTuple):
    version: Hashable
    context: Context | None


class NeighbourBook:
    """Remembers the neighbours of documents, as token ids. Any thread may call its methods.

    tokenize: returns the token ids of a text, without special tokens.
    """

    def __init__(self, tokenize: Callable[[str], Sequence[int]]) -> None:
        self._tokenize = tokenize
        self._entries: OrderedDict[tuple[str | None, str], _Entry] = OrderedDict()
        self._lock = Lock()

    def learn(self, documents: Sequence[Document], corpus: Corpus, tenant: str | None) -> None:
        """Look up the neighbours of those documents that are new, or whose corpus has changed.

        Nothing happens if the look-up fails: the documents are then stored alone.
        """
        with self._lock:
            unknown = [
                document
                for document in documents
                if not (entry := self._entries.get((tenant, document.id)))
                or entry.version != corpus.version
            ]
        if not unknown:
            return
        try:
            contexts = [self._as_context(found) for found in corpus.find(unknown)]
        except Exception:  # a search must not fail because of it
            logger.warning("could not look up neighbours of documents", exc_info=True)
            contexts = [None] * len(unknown)
        with self._lock:
            for document, context in zip(unknown, contexts, strict=True):
                self._entries[tenant, document.id] = _Entry(corpus.version, context)
            while len(self._entries) > MOST_KNOWN:
                self._entries.popitem(last=False)

    def contexts(self, document_ids: Iterable[str], tenant: str | None) -> dict[str, Context]:
        """Return the contexts of those documents that have a known neighbour."""
        found: dict[str, Context] = {}
        with self._lock:
            for name in document_ids:
                # Retrievals without a tenant are everybody's.
                key = next((k for k in ((tenant, name), (None, name)) if k in self._entries), None)
                if key is None:
                    continue
                self._entries.move_to_end(key)
                context = self._entries[key].context
                if context is not None:
                    found[name] = context
        return found

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember neither these documents nor that they are others' neighbours."""
        names = set(document_ids)
        with self._lock:
            doomed = [
                key
                for key, entry in self._entries.items()
                if key[1] in names or (entry.context and entry.context[0] in names)
            ]
            for key in doomed:
                del self._entries[key]

    def _as_context(self, neighbour: Document | None) -> Context | None:
        if neighbour is None:
            return None
        return neighbour.id, tuple(self._tokenize(neighbour.text + SEPARATOR))


ContextsOf = Callable[[Iterable[str], str | None], Mapping[str, Context]]
"""Returns the contexts of documents for a tenant's prompt; see NeighbourBook.contexts."""


def without_contexts(document_ids: Iterable[str], tenant: str | None) -> Mapping[str, Context]:
    """Return no context: documents are stored alone."""
    return {}
