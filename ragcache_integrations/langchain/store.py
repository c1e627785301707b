"""The stores a retriever can search: their checks and their searches by a query's vector.

There are two kinds. One says for itself what the retriever asks (`SearchedByVector`), as our
FaissVectorStore does. The other is langchain_community's FAISS, recognised by its parts, so that
langchain-community need not be installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore

from ragcache_engine import IndexOutOfStep, UnknownDocument, UnsupportedStore
from ragcache_integrations.search_checks import (
    check_not_empty,
    check_same_count,
    check_vector_size,
    is_faiss_index,
)
from ragcache_integrations.staging import OnStage, preview_each_stage

_COMMUNITY_ATTRIBUTES = ("index", "docstore", "index_to_docstore_id", "similarity_search_by_vector")


@runtime_checkable
class SearchableByVector(Protocol):
    """A vector store that can be asked everything a retriever asks, with the query embedded."""

    def check_searchable(self) -> None:
        """Raises EmptyIndex, or another RetrievalError if nothing can be found."""

    def search_by_vector(
        self, embedding: Sequence[float], search_type: str, **kwargs: Any
    ) -> list[Document]:
        """What the store's own retriever finds. Raises QueryShapeError for a vector of another size.

        search_type, kwargs: as a VectorStoreRetriever has them, "k" among the latter. There may also be
          `on_stage`, an OnStage[list[Document]] to be told of provisional results.
        """


def check_supported(store: Any) -> None:
    """Raises UnsupportedStore unless this is a FAISS store."""
    if not isinstance(store, VectorStore) or not (
        isinstance(store, SearchableByVector) or _is_community(store)
    ):
        raise UnsupportedStore(
            f"RAGCacheRetriever searches FaissVectorStore and LangChain's FAISS vector store, got "
            f"{type(store).__name__}; keep store.as_retriever() for other stores"
        )


def check_searchable(store: Any) -> None:
    """Raises EmptyIndex or IndexOutOfStep. Cheap: it is asked before each search."""
    if isinstance(store, SearchableByVector):
        store.check_searchable()
        return
    check_not_empty(store.index)
    if store.docstore is None:
        raise IndexOutOfStep("the store has an index and no docstore; load both from one save")
    check_same_count(store.index.ntotal, len(store.index_to_docstore_id))


def embed(store: Any, query: str) -> Sequence[float]:
    """The query's vector, by the store's own embedding model."""
    if store.embeddings is None:  # the store was given a plain function
        vector: Sequence[float] = store.embedding_function(query)
    else:
        vector = store.embeddings.embed_query(query)
    return vector


async def aembed(store: Any, query: str) -> Sequence[float]:
    """`embed` without holding up the event loop."""
    if store.embeddings is None:
        return await run_in_executor(None, embed, store, query)
    vector: Sequence[float] = await store.embeddings.aembed_query(query)
    return vector


def find_nearest(
    store: Any,
    vector: Sequence[float],
    search_type: str,
    options: Mapping[str, Any],
    on_stage: OnStage[list[Document]] | None = None,
) -> list[Document]:
    """What the store's own retriever finds for a query of this vector, in its order.

    on_stage: searches in stages, and is told what it would find if it ended now.
    Raises QueryShapeError if the vector is not of the index's size; UnknownDocument if the index
    names a document that the docstore does not hold.
    """
    if isinstance(store, SearchableByVector):
        told = {} if on_stage is None else {"on_stage": on_stage}
        return store.search_by_vector(vector, search_type, **options, **told)
    check_vector_size(len(vector), store.index)
    search = partial(_run_search, store, vector, search_type, options)
    try:
        if on_stage is None or not _can_be_staged(store):
            return search(None)
        return preview_each_stage(store.index, search, on_stage)
    except (KeyError, ValueError) as error:
        # A filter or an option may raise these as well: say so only if something is missing.
        if missing := _find_missing(store):
            raise UnknownDocument(
                f"the index names documents that the docstore does not hold ({missing[0]!r} and "
                f"{len(missing) - 1} more); load both from one save, or build them again together"
            ) from error
        raise


def _is_community(store: VectorStore) -> bool:
    has_all = all(hasattr(store, name) for name in _COMMUNITY_ATTRIBUTES)
    return has_all and is_faiss_index(store.index)  # type: ignore[attr-defined]


def _run_search(
    store: Any,
    vector: Sequence[float],
    search_type: str,
    options: Mapping[str, Any],
    stand_in: Any,
) -> list[Document]:
    """The store's own search; of the stand-in for its index, if there is one."""
    view = store if stand_in is None else _store_with_index(store, stand_in)
    return _SEARCHES[search_type](view, vector, dict(options))


def _can_be_staged(store: Any) -> bool:
    try:
        return _store_with_index(store, store.index).index is store.index
    except Exception:  # a store of another make, searched as it always was
        return False


def _store_with_index(store: Any, index: Any) -> Any:
    """The same store over another index. It shares everything else, and is gone after one search."""
    # Not copy.copy: a store may leave its index or its embeddings out of what it lets be copied.
    view = object.__new__(type(store))
    view.__dict__.update(store.__dict__, index=index)
    return view


def _search_by_similarity(
    store: Any, vector: Sequence[float], options: dict[str, Any]
) -> list[Document]:
    found: list[Document] = store.similarity_search_by_vector(vector, **options)
    return found


def _search_by_mmr(store: Any, vector: Sequence[float], options: dict[str, Any]) -> list[Document]:
    found: list[Document] = store.max_marginal_relevance_search_by_vector(vector, **options)
    return found


def _search_by_relevance(
    store: Any, vector: Sequence[float], options: dict[str, Any]
) -> list[Document]:
    # LangChain has this search by text only, and embedding the query twice would cost more than
    # the search: so its two steps are taken here, with the store's own relevance function.
    threshold = options.pop("score_threshold")
    relevance = store._select_relevance_score_fn()
    scored = store.similarity_search_with_score_by_vector(vector, **options)
    return [document for document, score in scored if relevance(score) >= threshold]


_SEARCHES = {
    "similarity": _search_by_similarity,
    "mmr": _search_by_mmr,
    "similarity_score_threshold": _search_by_relevance,
}


def _find_missing(store: Any) -> list[object]:
    """Ids the docstore does not hold, and positions that have no id."""
    ids = store.index_to_docstore_id
    missing: list[object] = [at for at in range(store.index.ntotal) if at not in ids]
    return missing + [
        name for name in ids.values() if not isinstance(store.docstore.search(name), Document)
    ]
