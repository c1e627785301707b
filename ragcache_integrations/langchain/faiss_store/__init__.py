"""FaissVectorStore and what it is made of, from LangChain's face inwards.

    vectorstore.py    the class itself: embeds, translates, leaves the rest to
    collection.py     documents and vectors in step, for many threads
      indexes.py      flat, IVF, HNSW or a given index: built, and built anew
      row_search.py   a search of one among chosen rows
      filter_cache.py which rows a filter chooses
    persistence.py    a collection in a folder; community.py reads langchain_community's

and, without any state: additions.py (what is added), search_request.py (what is asked), filters.py,
metric.py, diversity.py; locks.py. Importing this package loads Faiss.
"""

from ragcache_integrations.langchain.faiss_store.indexes import FlatIndex, HNSWIndex, IVFIndex
from ragcache_integrations.langchain.faiss_store.vectorstore import FaissVectorStore

__all__ = ["FaissVectorStore", "FlatIndex", "HNSWIndex", "IVFIndex"]
