"""Finds the neighbours of documents in a LangChain store: what it has that is most like them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import ragcache_engine
from ragcache_engine import Corpus
from ragcache_integrations.langchain.store import SearchableByVector, find_nearest
from ragcache_integrations.neighbour_choice import (
    LOOKED_AT,
    choose_neighbour,
    name_filter,
    number_of,
)

RESTRICTING = ("filter", "fetch_k")
"""Options of a search that restrict what it may find; fetch_k: how many vectors a filter looks at."""

EVERYTHING: Mapping[str, Any] = MappingProxyType({})


def corpus_of(store: Any, as_document: Any, options: Mapping[str, Any] = EVERYTHING) -> Corpus:
    """Return the store as a corpus. as_document: makes the engine's Document of LangChain's.

    options: those of the search. A neighbour is a document that this search may find.
    """
    restrictions = {
        name: options[name] for name in RESTRICTING if options.get("filter") and name in options
    }
    seen = tuple(name_filter(restrictions.get(name)) for name in RESTRICTING)
    find = partial(_find_neighbours, store, as_document, restrictions)
    return Corpus(_version_of(store), find, name=(number_of(store), *seen))


def _version_of(store: Any) -> Hashable:
    """Return what differs whenever the store has other documents; cheap enough for each search.

    What changes in LangChain's own store is the number of its vectors, or else the last of them: it
    deletes, and adds at the end.
    """
    if isinstance(store, SearchableByVector):
        return store.changes
    index, names = store.index, store.index_to_docstore_id
    last = names.get(index.ntotal - 1)
    found = store.docstore.search(last) if last is not None else None
    return number_of(index), index.ntotal, last, getattr(found, "page_content", None)


def _find_neighbours(
    store: Any,
    as_document: Any,
    restrictions: Mapping[str, Any],
    documents: Sequence[ragcache_engine.Document],
) -> list[ragcache_engine.Document | None]:
    """Embed the documents' texts, and search the store with them."""
    if store.embeddings is None:
        return [None] * len(documents)
    vectors = store.embeddings.embed_documents([document.text for document in documents])
    options = {**restrictions, "k": LOOKED_AT}
    found = (find_nearest(store, vector, "similarity", options) for vector in vectors)
    return [
        choose_neighbour(document, map(as_document, nearest))
        for document, nearest in zip(documents, found, strict=True)
    ]
