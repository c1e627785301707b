"""FaissVectorStore and its parts, from LangChain's methods inwards.

    vectorstore.py        the class itself: embeds, translates arguments, and calls the rest
    collection.py         documents and vectors in step, for many threads
      indexes.py          flat, IVF, HNSW or a given index: how each is built and rebuilt
      row_search.py       searches an index among chosen rows
      filter_cache.py     remembers which rows a filter chooses
    persistence.py        saves a collection in a folder and loads it
    community.py          reads the files that langchain_community's FAISS saved

and, without state: additions.py (checks new documents), search_request.py (checks a search's
arguments, runs it, and makes the results), filters.py, metric.py, diversity.py, errors.py.
Importing this package loads Faiss.
"""

from ragcache_integrations.langchain.faiss_store.errors import (
    InvalidFilter,
    NotStorable,
    SaveDamaged,
    SavedStoreError,
    SaveForeign,
    SaveNotFound,
    UnequalLengths,
    UnsupportedIndex,
    UntrustedPickle,
    VectorShapeError,
)
from ragcache_integrations.langchain.faiss_store.indexes import FlatIndex, HNSWIndex, IVFIndex
from ragcache_integrations.langchain.faiss_store.vectorstore import FaissVectorStore

__all__ = [
    "FaissVectorStore",
    "FlatIndex",
    "HNSWIndex",
    "IVFIndex",
    "InvalidFilter",
    "NotStorable",
    "SaveDamaged",
    "SaveForeign",
    "SaveNotFound",
    "SavedStoreError",
    "UnequalLengths",
    "UnsupportedIndex",
    "UntrustedPickle",
    "VectorShapeError",
]
