"""Finds the neighbours of documents in a LangChain store: what it has that is most like them.

Our stores and langchain_community's FAISS are searched as `from_vectorstore` does. Of any other
retriever, the store or the index below it is asked with the document's own vector or text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

import ragcache_engine
from ragcache_engine import Corpus
from ragcache_integrations.langchain.store import SearchableByVector, find_nearest
from ragcache_integrations.neighbour_choice import (
    LOOKED_AT,
    choose_neighbours,
    last_key,
    name_filter,
    number_of,
)

RESTRICTING = ("filter", "fetch_k")
"""Options of a search that restrict what it may find; fetch_k: how many vectors a filter looks at."""

RANKING = ("k", "score_threshold", "fetch_k", "lambda_mult")
"""Options of a search in any other store that do not restrict what it may find."""

INNER = ("bound", "retriever", "base_retriever", "first", "middle", "last", "retrievers")
"""Where bindings, compressors, sequences and ensembles keep the retrievers that they ask."""

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
) -> list[list[ragcache_engine.Document]]:
    """Embed the documents' texts, and search the store with them."""
    if store.embeddings is None:
        return [[] for _ in documents]
    vectors = store.embeddings.embed_documents([document.text for document in documents])
    options = {**restrictions, "k": LOOKED_AT}
    found = (find_nearest(store, vector, "similarity", options) for vector in vectors)
    return [
        choose_neighbours(document, map(as_document, nearest))
        for document, nearest in zip(documents, found, strict=True)
    ]


def corpus_of_other(
    retriever: Any, as_document: Any, options: Mapping[str, Any] = EVERYTHING
) -> Corpus | None:
    """Return what any retriever searches as a corpus; None if it cannot be asked for neighbours.

    options: those of one call of the retriever.
    A store that keeps its documents in a dict tells when it has others. In any other, a document keeps
    the neighbour that it had when it was first found.
    """
    if isinstance(retriever, VectorStoreRetriever):
        store: Any = retriever.vectorstore
        given = {**retriever.search_kwargs, **options}
        restrictions = {name: one for name, one in given.items() if name not in RANKING}
        held = getattr(store, "store", None)
        version = (len(held), last_key(held)) if isinstance(held, dict) else None
        seen = tuple((name, name_filter(one)) for name, one in sorted(restrictions.items()))
        search = partial(_search_store, store, restrictions)
    elif isinstance(retriever, BaseRetriever) and _ranks_texts(retriever):
        store, version, seen = retriever, None, ()
        search = partial(_search_by_text, retriever)
    else:
        options = {**getattr(retriever, "kwargs", {}), **options}  # of a binding
        inner = (corpus_of_other(one, as_document, options) for one in _inner(retriever))
        return next((corpus for corpus in inner if corpus), None)

    def find(
        documents: Sequence[ragcache_engine.Document],
    ) -> list[list[ragcache_engine.Document]]:
        found = search([document.text for document in documents])
        return [
            choose_neighbours(document, map(as_document, nearest))
            for document, nearest in zip(documents, found, strict=True)
        ]

    return Corpus(version, find, name=(number_of(store), *seen))


def _ranks_texts(retriever: BaseRetriever) -> bool:
    """Return whether a retriever ranks what it holds by a text, as BM25 does, or what its store holds."""
    return isinstance(getattr(retriever, "docs", None), list) or (
        isinstance(getattr(retriever, "vectorstore", None), VectorStore)
        and hasattr(retriever, "docstore")
    )


def _inner(retriever: Any) -> list[Any]:
    inner = (getattr(retriever, name, None) for name in INNER)
    return [one for part in inner for one in (part if isinstance(part, list) else [part]) if one]


def _search_store(
    store: VectorStore, restrictions: Mapping[str, Any], texts: list[str]
) -> list[list[Document]]:
    if store.embeddings is not None:
        vectors = store.embeddings.embed_documents(texts)
        try:
            return [
                store.similarity_search_by_vector(vector, k=LOOKED_AT, **restrictions)
                for vector in vectors
            ]
        except NotImplementedError:  # as LangChain's base class raises
            pass
    return [store.similarity_search(text, k=LOOKED_AT, **restrictions) for text in texts]


def _search_by_text(retriever: BaseRetriever, texts: list[str]) -> list[list[Document]]:
    """Ask the retriever itself, in a run that no callback sees."""
    asked = retriever.model_copy(update={"k": LOOKED_AT} if hasattr(retriever, "k") else {})
    run = CallbackManagerForRetrieverRun.get_noop_manager()
    ask: Callable[..., list[Document]] = asked._get_relevant_documents
    return [ask(text, run_manager=run) for text in texts]
