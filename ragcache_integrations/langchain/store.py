"""The LangChain stores that a retriever can search, and how they are checked and searched.

There are two kinds. Our FaissVectorStore has the methods that the retriever needs
(`SearchableByVector`). langchain_community's FAISS is recognised by its attributes, so that
langchain-community need not be installed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ragcache_engine import EmptyIndex, IndexOutOfStep, UnknownDocument, UnsupportedStore
from ragcache_integrations.faiss_threads import with_faiss_threads_of_caller
from ragcache_integrations.index_guard import guard_index
from ragcache_integrations.orphans import WithoutOrphans, search_until_settled
from ragcache_integrations.search_checks import (
    check_vector_size,
    is_faiss_index,
)
from ragcache_integrations.staging import OnStage, preview_each_stage

_COMMUNITY_ATTRIBUTES = ("index", "docstore", "index_to_docstore_id", "similarity_search_by_vector")


@runtime_checkable
class SearchableByVector(Protocol):
    """A vector store that can do every search of a retriever with the query already embedded."""

    @property
    def changes(self) -> int:
        """How often documents came or went."""

    def check_searchable(self) -> None:
        """Raise EmptyIndex, or another RetrievalError if nothing can be found."""

    def all_documents(self) -> list[Document]:
        """Return every document of the store."""

    def search_by_vector(
        self, embedding: Sequence[float], search_type: str, **kwargs: Any
    ) -> list[Document]:
        """Return what the store's own retriever finds.

        search_type, kwargs: as in a VectorStoreRetriever; kwargs includes "k". It may also include
          `on_stage`, an OnStage[list[Document]] that is called with provisional results.
        Raises QueryShapeError for a vector of another size than the index's.
        """


def check_supported(store: Any) -> None:
    """Raise UnsupportedStore unless this is a FAISS store."""
    if not isinstance(store, VectorStore) or not (
        isinstance(store, SearchableByVector) or _is_community(store)
    ):
        raise UnsupportedStore(
            f"RAGCacheRetriever searches FaissVectorStore and LangChain's FAISS vector store, got "
            f"{type(store).__name__}; for another store, give its retriever to "
            f"RAGCacheRetriever.from_retriever(store.as_retriever(), engine=engine)"
        )


def can_find_anything(store: Any) -> bool:
    """Return False for an empty store, whose own retriever finds nothing either.

    Raises IndexOutOfStep without a docstore. Cheap enough to run before each search.
    """
    if isinstance(store, SearchableByVector):
        try:
            store.check_searchable()
        except EmptyIndex:
            return False
        return True
    if store.index.ntotal == 0:
        return False
    if store.docstore is None:
        raise IndexOutOfStep("the store has an index and no docstore; load both from one save")
    return True


def all_documents(store: Any) -> list[Document]:
    """Return every document of a store. Raises UnknownDocument if the docstore lacks one."""
    if isinstance(store, SearchableByVector):
        return store.all_documents()
    if not can_find_anything(store):
        return []
    with guard_index(store.index).reading():
        found = [store.docstore.search(name) for name in store.index_to_docstore_id.values()]
    for one in found:
        if not isinstance(one, Document):
            raise UnknownDocument(
                f"the index names a document that the docstore does not hold ({one}); load both from "
                f"one save, or build them again together"
            )
    return found


def search(
    store: Any,
    query: str,
    search_type: str,
    options: Mapping[str, Any],
    on_stage: OnStage[list[Document]] | None = None,
) -> list[Document]:
    """Return what the store's own retriever finds for a query, in its order.

    The query is not embedded if the store is empty.
    on_stage: called at each stage of the search with what the search would return if it ended now.
    Raises IndexOutOfStep; QueryShapeError if the query's vector is not of the index's size;
    UnknownDocument if the index names a document that the docstore does not hold.
    """
    if not can_find_anything(store):
        return []
    return find_nearest(store, _embed(store, query), search_type, options, on_stage)


async def asearch(
    store: Any,
    query: str,
    search_type: str,
    options: Mapping[str, Any],
    apart: Callable[[Callable[[], Any]], Awaitable[Any]],
    on_stage: OnStage[list[Document]] | None = None,
) -> list[Document]:
    """`search` for coroutines. apart: runs a call beside the event loop."""
    if not can_find_anything(store):
        return []
    model = store.embeddings
    if computes_here(model):
        vector = await apart(partial(_embed, store, query))
    else:
        vector = await model.aembed_query(query)
    find = partial(find_nearest, store, vector, search_type, options, on_stage)
    found: list[Document] = await apart(with_faiss_threads_of_caller(find))
    return found


def computes_here(model: Any) -> bool:
    """Return whether an embedding model has no coroutine of its own, so that a thread must call it."""
    return model is None or getattr(type(model), "aembed_query", None) is Embeddings.aembed_query


def _embed(store: Any, query: str) -> Sequence[float]:
    """Embed the query with the store's own embedding model."""
    if store.embeddings is None:  # the store was given a plain function
        vector: Sequence[float] = store.embedding_function(query)
    else:
        vector = store.embeddings.embed_query(query)
    return vector


def find_nearest(
    store: Any,
    vector: Sequence[float],
    search_type: str,
    options: Mapping[str, Any],
    on_stage: OnStage[list[Document]] | None = None,
) -> list[Document]:
    """Return what the store finds for a vector; see `search`."""
    if isinstance(store, SearchableByVector):
        stage_option = {} if on_stage is None else {"on_stage": on_stage}
        return store.search_by_vector(vector, search_type, **options, **stage_option)
    check_vector_size(len(vector), store.index)

    def search() -> list[Document]:
        with guard_index(store.index).reading(), _name_missing_documents(store):
            return _search_community(store, vector, search_type, options, on_stage)

    return search_until_settled(search)


def _search_community(
    store: Any,
    vector: Sequence[float],
    search_type: str,
    options: Mapping[str, Any],
    on_stage: OnStage[list[Document]] | None,
) -> list[Document]:
    run = partial(_SEARCHES[search_type], vector=vector)
    if not _can_be_staged(store):
        return run(store, options=dict(options))

    def has_document(position: int) -> bool:
        return position in store.index_to_docstore_id

    def search(index: Any) -> list[Document]:
        known = WithoutOrphans(index, has_document, complete_index=store.index)
        documents = run(_store_with_index(store, known), options=dict(options))
        if not documents:
            known.check_any_found()
        return documents

    def preview(index: Any) -> list[Document]:
        known = WithoutOrphans(index, has_document)
        return run(_store_with_index(store, known), options=dict(options))

    if on_stage is None:
        return search(store.index)
    return preview_each_stage(store.index, search, on_stage, preview)


@contextmanager
def _name_missing_documents(store: Any) -> Iterator[None]:
    """Turn a search's KeyError or ValueError into UnknownDocument if a document is missing."""
    try:
        yield
    except (KeyError, ValueError) as error:
        # A filter or an option may raise these too, so look whether a document is really missing.
        if missing := _find_missing(store):
            raise UnknownDocument(
                f"the index names documents that the docstore does not hold ({missing[0]!r} and "
                f"{len(missing) - 1} more); load both from one save, or build them again together"
            ) from error
        raise


def _is_community(store: VectorStore) -> bool:
    has_all = all(hasattr(store, name) for name in _COMMUNITY_ATTRIBUTES)
    return has_all and is_faiss_index(store.index)  # type: ignore[attr-defined]


def _can_be_staged(store: Any) -> bool:
    try:
        return _store_with_index(store, store.index).index is store.index
    except Exception:  # a store with other attributes is searched without stages
        return False


def _store_with_index(store: Any, index: Any) -> Any:
    """Return a store for one search that has this index and shares everything else."""
    # Not copy.copy: a store may define copying so that its index or embeddings are left out.
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
    # LangChain has this search for texts only, and embedding the query again would take longer than
    # the search. So its two steps are done here, with the store's own relevance function.
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
    """Return ids that the docstore does not hold, and positions in the index that have no id."""
    ids = dict(store.index_to_docstore_id)  # documents may be added meanwhile
    missing: list[object] = [at for at in range(store.index.ntotal) if at not in ids]
    return missing + [
        name for name in ids.values() if not isinstance(store.docstore.search(name), Document)
    ]
