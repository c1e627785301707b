"""Finds the neighbours of passages in their index: behind them, an engine stores passages to borrow."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_cli.index import PassageIndex
from ragcache_cli.passages import Passage
from ragcache_engine import Corpus, Document
from ragcache_integrations.neighbour_choice import LOOKED_AT, choose_neighbours


def as_document(passage: Passage) -> Document:
    """Return a passage as the engine knows it."""
    return Document(passage.id, passage.shown)


def corpus_of(index: PassageIndex) -> Corpus:
    """Return the index as a corpus. An update of the index changes its version."""
    rows = {passage.id: row for row, passage in enumerate(index.passages)}

    def find_neighbours(document: Document) -> list[Document]:
        row = rows.get(document.id)
        if row is None:
            return []
        nearest = index.nearest(index.vector(row), LOOKED_AT)
        return choose_neighbours(document, map(as_document, nearest))

    def find(documents: Sequence[Document]) -> list[list[Document]]:
        return [find_neighbours(document) for document in documents]

    return Corpus(index.manifest, find)
