"""Chooses a document's neighbour from what a search with the document itself finds."""

from __future__ import annotations

from collections.abc import Iterable

from ragcache_engine import Document

LOOKED_AT = 3
"""How many of the nearest documents to look at: the nearest one is nearly always the document itself."""


def choose_neighbour(document: Document, nearest: Iterable[Document]) -> Document | None:
    """Return the first that is another document with another text; None if there is none.

    nearest: what the search found, nearest first.
    """
    others = (one for one in nearest if one.id != document.id and one.text != document.text)
    return next(others, None)
