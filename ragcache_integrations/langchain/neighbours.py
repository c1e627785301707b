"""Finds the neighbours of documents in a LangChain store: what it has that is most like them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ragcache_engine
from ragcache_engine import Corpus
from ragcache_integrations.langchain.store import find_nearest
from ragcache_integrations.neighbour_choice import LOOKED_AT, choose_neighbour


def corpus_of(store: Any, as_document: Any) -> Corpus:
    """Return the store as a corpus. as_document: makes the engine's Document of LangChain's."""
    return Corpus(
        (id(store.index), store.index.ntotal), partial(_find_neighbours, store, as_document)
    )


def _find_neighbours(
    store: Any, as_document: Any, documents: Sequence[ragcache_engine.Document]
) -> list[ragcache_engine.Document | None]:
    """Embed the documents' texts, and search the store with them."""
    if store.embeddings is None:
        return [None] * len(documents)
    vectors = store.embeddings.embed_documents([document.text for document in documents])
    found = (find_nearest(store, vector, "similarity", {"k": LOOKED_AT}) for vector in vectors)
    return [
        choose_neighbour(document, map(as_document, nearest))
        for document, nearest in zip(documents, found, strict=True)
    ]
