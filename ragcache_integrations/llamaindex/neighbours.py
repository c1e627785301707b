"""Finds the neighbours of nodes in a LlamaIndex index: what it has that is most like them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever, VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle

from ragcache_engine import Corpus, Document
from ragcache_integrations.llamaindex.store import faiss_index, find_nearest
from ragcache_integrations.neighbour_choice import (
    LOOKED_AT,
    choose_neighbours,
    last_key,
    name_filter,
    number_of,
)

AsDocument = Callable[[NodeWithScore], Document]


def corpus_of(retriever: VectorIndexRetriever, as_document: AsDocument) -> Corpus:
    """Return the index of a retriever as a corpus. as_document: makes a Document of a node."""
    searcher = copy(retriever)
    searcher.similarity_top_k = LOOKED_AT
    # An engine keeps the corpus while documents wait, and must not be kept by it.
    vars(searcher).update(_engine=None, _llm=None, _template=None)
    restrictions = (retriever._filters, retriever._node_ids, retriever._doc_ids)
    return Corpus(
        _version_of(retriever._index),
        partial(_find_neighbours, searcher, as_document),
        name=(number_of(retriever._index), *map(name_filter, restrictions)),
    )


def _version_of(index: VectorStoreIndex) -> Hashable:
    """Return what differs whenever the index has other nodes; cheap enough for each search.

    Nodes are deleted, and added at the end: their number changes, or else the last of them.
    """
    vectors, names = faiss_index(index), index.index_struct.nodes_dict
    last = last_key(names)
    return number_of(vectors), vectors.ntotal, last, names.get(last)


def _find_neighbours(
    searcher: VectorIndexRetriever, as_document: AsDocument, documents: Sequence[Document]
) -> list[list[Document]]:
    """Embed the documents' texts, and search the index with them."""
    vectors = searcher._embed_model.get_text_embedding_batch([one.text for one in documents])
    found = (find_nearest(searcher, QueryBundle("", embedding=vector)) for vector in vectors)
    return [
        choose_neighbours(document, map(as_document, nearest))
        for document, nearest in zip(documents, found, strict=True)
    ]


def corpus_of_other(retriever: Any, as_document: AsDocument) -> Corpus | None:
    """Return what any retriever searches as a corpus; None if it cannot be asked for neighbours.

    An index that lists its nodes tells when it has others. In any other, as with most databases, a node
    keeps the neighbour that it had when it was first found.
    """
    if isinstance(retriever, VectorIndexRetriever):
        nodes = retriever._index.index_struct.nodes_dict
        last = last_key(nodes)
        version: Hashable = len(nodes), last, nodes.get(last)
        store, embed_model = retriever._index, retriever._embed_model
        seen = tuple(
            map(name_filter, (retriever._filters, retriever._node_ids, retriever._doc_ids))
        )
    elif hasattr(retriever, "bm25"):
        version, store, embed_model, seen = None, retriever, None, ()
    else:
        inner = (corpus_of_other(one, as_document) for one in _inner(retriever))
        return next((corpus for corpus in inner if corpus), None)
    searcher = copy(retriever)
    searcher.similarity_top_k = LOOKED_AT

    def find(documents: Sequence[Document]) -> list[list[Document]]:
        texts = [document.text for document in documents]
        vectors: Sequence[list[float] | None] = [None] * len(texts)
        if embed_model is not None and retriever._vector_store.is_embedding_query:
            vectors = embed_model.get_text_embedding_batch(texts)
        queries = map(QueryBundle, texts, [None] * len(texts), [None] * len(texts), vectors)
        return [
            choose_neighbours(document, map(as_document, searcher._retrieve(query)))
            for document, query in zip(documents, queries, strict=True)
        ]

    return Corpus(version, find, name=(number_of(store), *seen))


def _inner(retriever: Any) -> Iterator[BaseRetriever]:
    """Yield the retrievers that this one asks."""
    for part in vars(retriever).values() if isinstance(retriever, BaseRetriever) else ():
        parts = (
            part.values() if isinstance(part, dict) else part if isinstance(part, list) else [part]
        )
        yield from (one for one in parts if isinstance(one, BaseRetriever))
