"""Chooses a document's neighbours among what a search with it finds, and names corpora."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, finalize

from ragcache_engine import Document, RAGCacheEngine

logger = logging.getLogger(__name__)

LOOKED_AT = 4
"""How many of the nearest documents to look at: the nearest one is nearly always the document itself, and
the next one its neighbour. The others are prepared in idle time, so more of them are more work."""

_TRIES = 5


def choose_neighbours(document: Document, nearest: Iterable[Document]) -> list[Document]:
    """Return those that are other documents with another text.

    nearest: what the search found, nearest first.
    """
    return [one for one in nearest if one.id != document.id and one.text != document.text]


def borrows_behind_neighbours(engine: RAGCacheEngine) -> bool:
    """Return whether the engine borrows from behind the neighbours of documents."""
    return engine.config.reuse == "anywhere" and engine.config.donors == "neighbours"


def warn_of_no_neighbours(retriever: Any) -> None:
    """Say that a retriever cannot be asked for neighbours. Call this once, when it is made."""
    logger.warning(
        "%s cannot be asked which documents are near another one, so its documents are borrowed as they "
        "are alone, and answers are less like the exact ones than was measured with neighbours: set "
        "donors='alone' and measure with `ragcache calibrate`, or wrap the retriever of a vector store",
        type(retriever).__name__,
    )


_numbers = count()
_known: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_known_by_id: dict[int, int] = {}
"""The numbers of objects that have no hash, as long as the objects live."""
_lock = Lock()


def number_of(thing: Any) -> int:
    """Return a number that no other object ever has, unlike its `id`."""
    try:
        with _lock:
            if thing not in _known:
                _known[thing] = next(_numbers)
            return _known[thing]
    except TypeError:  # no hash, or no weak references
        return _number_by_id(thing)


def _number_by_id(thing: Any) -> int:
    """Return its number; another one each time if no weak reference can tell that it is gone."""
    with _lock:
        if (known := _known_by_id.get(id(thing))) is not None:
            return known
        number = next(_numbers)
        with suppress(TypeError):
            finalize(thing, _known_by_id.pop, id(thing)).atexit = False
            _known_by_id[id(thing)] = number
        return number


def last_key(things: dict[Any, Any]) -> Any:
    """Return the last key of a dict; None if it is empty, or if other threads add to it all the time."""
    for _ in range(_TRIES):
        with suppress(RuntimeError):  # another thread added meanwhile
            return next(reversed(things), None)
    return None


def name_filter(chosen: Any) -> Hashable:
    """Return a name for what a search may find; None for everything.

    chosen: a function, or values that tell what they are by their repr.
    """
    if chosen is None:
        return None
    return number_of(chosen) if callable(chosen) else repr(chosen)
