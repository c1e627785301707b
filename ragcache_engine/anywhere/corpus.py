"""The value that tells where the neighbours of documents are looked up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from ragcache_engine.values import Document

FindNeighbours = Callable[
    [Sequence[Document]], Sequence[Document | None] | Sequence[Sequence[Document]]
]
"""Returns, for each document, the nearest other one in its corpus; None where that is not known. Or a
few of them, nearest first: the others are prepared in idle time, as they are likely to be found soon."""


class Corpus(NamedTuple):
    """Where the neighbours of retrieved documents are looked up.

    version: differs whenever the corpus has other documents. find: looks neighbours up; called where the
      search runs, and on a thread of the engine.
    name: which corpus this is, in all its versions. A store that is searched with a filter is another
      corpus than the same store without: a neighbour must be a document that the search may find.
    """

    version: Hashable
    find: FindNeighbours
    name: Hashable = ""

    def look_up(self, documents: Sequence[Document]) -> list[Sequence[Document]]:
        """Return each document's neighbours, nearest first. Raises what `find` does."""
        return [
            () if found is None else (found,) if isinstance(found, Document) else found
            for found in self.find(documents)
        ]
