"""Remembers behind what documents are stored, as each prompt of a client tells its neighbours anew."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import sha256
from sys import getsizeof
from threading import Lock
from typing import NamedTuple

from ragcache_engine.anywhere.neighbours import ENOUGH, Tokenize, context_behind
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import Document

MOST_BYTES = 64 << 20
"""How much memory the remembered contexts may take."""

ENTRY_BYTES = 4_000
"""The most that one takes beside its tokens: its neighbour's name, and digests."""


class _Key(NamedTuple):
    """end, text: digests of the document's end and of its neighbour's text."""

    end: bytes
    neighbour: str
    text: bytes


class KnownContexts:
    """The contexts of the latest prompts' documents. Any thread may call its methods."""

    def __init__(self) -> None:
        self._known: LatestItems[_Key, Context] = LatestItems(
            MOST_BYTES, lambda _, context: ENTRY_BYTES + getsizeof(context.token_ids)
        )
        self._lock = Lock()

    def find(self, tokenize: Tokenize, text: str, neighbour: Document) -> Context:
        """Return the context of a document, whose text this is, behind a neighbour."""
        end = text[-ENOUGH:]
        name = _Key(_digest(end), neighbour.id, _digest(neighbour.text))
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.touch(name)
        if known is None:
            known = context_behind(tokenize, end, neighbour)
            known = known._replace(token_ids=array("I", known.token_ids))
            with self._lock:
                self._known[name] = known
        return known._replace(token_ids=tuple(known.token_ids))

    def of_registered(
        self, tokenize: Tokenize, documents: Iterable[Document], corpora: Corpora
    ) -> dict[str, Context]:
        """Return the contexts of those registered documents that have a neighbour."""
        near = [(one, corpora.neighbour(one.id)) for one in documents]
        return {
            one.id: self.find(tokenize, one.text, other) for one, other in near if other is not None
        }

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember no document that is stored behind one of these."""
        names = set(document_ids)
        with self._lock:
            for key in [key for key in self._known if key.neighbour in names]:
                del self._known[key]


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
