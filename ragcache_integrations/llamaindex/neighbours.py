"""Finds the neighbours of nodes in a LlamaIndex index: what it has that is most like them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from ragcache_engine import Corpus, Document
from ragcache_integrations.llamaindex.store import faiss_index, find_nearest
from ragcache_integrations.neighbour_choice import LOOKED_AT, choose_neighbour

AsDocument = Callable[[NodeWithScore], Document]


def corpus_of(retriever: VectorIndexRetriever, as_document: AsDocument) -> Corpus:
    """Return the index of a retriever as a corpus. as_document: makes a Document of a node."""
    index = faiss_index(retriever._index)
    searcher = copy(retriever)
    searcher.similarity_top_k = LOOKED_AT
    return Corpus((id(index), index.ntotal), partial(_find_neighbours, searcher, as_document))


def _find_neighbours(
    searcher: VectorIndexRetriever, as_document: AsDocument, documents: Sequence[Document]
) -> list[Document | None]:
    """Embed the documents' texts, and search the index with them."""
    vectors = searcher._embed_model.get_text_embedding_batch([one.text for one in documents])
    found = (find_nearest(searcher, QueryBundle("", embedding=vector)) for vector in vectors)
    return [
        choose_neighbour(document, map(as_document, nearest))
        for document, nearest in zip(documents, found, strict=True)
    ]
