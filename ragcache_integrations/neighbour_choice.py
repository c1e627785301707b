"""Chooses a document's neighbour from what a search with the document itself finds, and names corpora."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from ragcache_engine import Document

LOOKED_AT = 3
"""How many of the nearest documents to look at: the nearest one is nearly always the document itself."""


def choose_neighbour(document: Document, nearest: Iterable[Document]) -> Document | None:
    """Return the first that is another document with another text; None if there is none.

    nearest: what the search found, nearest first.
    """
    others = (one for one in nearest if one.id != document.id and one.text != document.text)
    return next(others, None)


_numbers = count()
_known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_lock = Lock()


def number_of(thing: Any) -> int:
    """Return a number that no other object ever has, unlike its `id`."""
    try:
        with _lock:
            if thing not in _known:
                _known[thing] = next(_numbers)
            return _known[thing]
    except TypeError:  # no hash, or no weak references
        return id(thing)


def name_filter(chosen: Any) -> Hashable:
    """Return a name for what a search may find; None for everything.

    chosen: a function, or values that tell what they are by their repr.
    """
    if chosen is None:
        return None
    return number_of(chosen) if callable(chosen) else repr(chosen)
