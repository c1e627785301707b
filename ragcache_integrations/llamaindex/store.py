"""Checks a VectorStoreIndex over FaissVectorStore, and searches it by vector, for the retriever.

This module recognises the index by its attributes, without importing the vector store's package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from logging import getLogger
from typing import Any

from llama_index.core.indices.vector_store import VectorIndexRetriever, VectorStoreIndex
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from ragcache_engine import UnknownDocument, UnsupportedStore
from ragcache_integrations.index_guard import guard_index
from ragcache_integrations.orphans import WithoutOrphans, search_until_settled
from ragcache_integrations.search_checks import is_faiss_index
from ragcache_integrations.staging import OnStage, preview_each_stage

logger = getLogger(__name__)


def faiss_index(index: VectorStoreIndex) -> Any:
    """Return the faiss.Index inside."""
    return index.vector_store.client


def retriever_with_index(retriever: VectorIndexRetriever, index: Any) -> Any:
    """Return a retriever for one search that has this faiss.Index and shares everything else.

    It replaces two private attributes, because neither can be set in another way: a retriever's
    `_vector_store` and a Faiss store's `_faiss_index`. Raises AttributeError if they have moved.
    """
    store: Any = copy(retriever._vector_store)  # pydantic copies private attributes too, not deeply
    if store._faiss_index is not store.client:
        raise AttributeError(f"{type(store).__name__} does not search its _faiss_index")
    store._faiss_index = index
    view = object.__new__(type(retriever))
    view.__dict__.update(retriever.__dict__, _vector_store=store)
    return view


def find_nearest(
    retriever: VectorIndexRetriever,
    embedded: QueryBundle,
    on_stage: OnStage[list[NodeWithScore]] | None = None,
) -> list[NodeWithScore]:
    """Return what the index's own retriever finds for a query's vector, in its order.

    Vectors without a node are passed over, where the index's own retriever raises a KeyError. Changes to
    the Faiss index wait for the search, and the search for them.
    embedded.embedding: shape (faiss_index.d,).
    on_stage: called at each stage of the search with what the search would return if it ended now.
    Raises UnknownDocument if the index names a node that the docstore does not hold; IndexOutOfStep if
    none of the vectors found has a node.
    """

    def search() -> list[NodeWithScore]:
        index = retriever._index
        with guard_index(faiss_index(index)).reading(), name_missing_nodes(index):
            return _search_once(retriever, embedded, on_stage)

    # LlamaIndex raises a KeyError if a node is deleted after its vector was found.
    return search_until_settled(search, KeyError)


def _search_once(
    retriever: VectorIndexRetriever,
    embedded: QueryBundle,
    on_stage: OnStage[list[NodeWithScore]] | None,
) -> list[NodeWithScore]:
    stock_search = VectorIndexRetriever._retrieve
    if not can_be_staged(retriever):
        return stock_search(retriever, embedded)
    vectors, has_node = faiss_index(retriever._index), _node_lookup(retriever._index)

    def search(index: Any) -> list[NodeWithScore]:
        known = WithoutOrphans(index, has_node, complete_index=vectors)
        nodes = stock_search(retriever_with_index(retriever, known), embedded)
        # FaissMapVectorStore keeps the vectors of deleted documents. In other stores, all vectors have
        # nodes, so if none of those found has one, something is wrong.
        if not nodes and _names_by_id(retriever._index) is None:
            known.check_any_found()
        return nodes

    def preview(index: Any) -> list[NodeWithScore]:
        # A private method: the public one reports a retrieval to LlamaIndex's callbacks, and a
        # provisional result is not one.
        view = retriever_with_index(retriever, WithoutOrphans(index, has_node))
        found: list[NodeWithScore] = view._get_nodes_with_embeddings(embedded)
        return found

    if on_stage is None:
        return search(vectors)
    return preview_each_stage(vectors, search, on_stage, preview)


def _node_lookup(index: VectorStoreIndex) -> Callable[[int], bool]:
    """Return a function that tells whether the vector with an id has a node."""
    nodes, names = index.index_struct.nodes_dict, _names_by_id(index)
    if names is None:
        return lambda id_: str(id_) in nodes
    return lambda id_: names.get(id_) in nodes


def _names_by_id(index: VectorStoreIndex) -> Mapping[int, str] | None:
    """Return the node ids that FaissMapVectorStore has for its vectors; None for other stores.

    A private attribute, because the store does not tell in another way which vectors it holds.
    """
    return getattr(index.vector_store, "_faiss_id_to_node_id_map", None)


def can_be_staged(retriever: VectorIndexRetriever) -> bool:
    """Tell whether the retriever's Faiss index can be replaced, as `find_nearest` does."""
    try:
        retriever_with_index(retriever, faiss_index(retriever._index))
    except Exception as error:  # a store with other attributes is searched without stages
        logger.debug("searched without stages: %r", error)
        return False
    return True


def check_supported(index: Any) -> None:
    """Raise UnsupportedStore unless this is a VectorStoreIndex over Faiss."""
    store = getattr(index, "vector_store", None)
    if not isinstance(index, VectorStoreIndex) or not is_faiss_index(
        getattr(store, "client", None)
    ):
        found = type(index).__name__ + (f" over {type(store).__name__}" if store else "")
        raise UnsupportedStore(
            f"RAGCacheRetriever searches a VectorStoreIndex over FaissVectorStore, got {found}; "
            f"for another store, give its retriever to "
            f"RAGCacheRetriever.from_retriever(index.as_retriever(), engine=engine)"
        )


def can_find_anything(index: VectorStoreIndex) -> bool:
    """Return False for an empty index, whose own retriever finds nothing either."""
    return bool(faiss_index(index).ntotal)


def all_nodes(index: VectorStoreIndex) -> list[BaseNode]:
    """Return every node of an index. Raises UnknownDocument if the docstore lacks one."""
    with guard_index(faiss_index(index)).reading():
        names = list(dict.fromkeys(index.index_struct.nodes_dict.values()))
        try:
            return index.docstore.get_nodes(names)
        except ValueError as error:
            raise UnknownDocument(
                f"the index names nodes that the docstore does not hold ({error}); load both from one "
                f"save, or build them again together"
            ) from error


@contextmanager
def name_missing_nodes(index: VectorStoreIndex) -> Iterator[None]:
    """Turn a search's KeyError into UnknownDocument if a node is missing."""
    try:
        yield
    except KeyError as error:
        if missing := _find_missing(index) or _find_vectors_without_node(index, error.args):
            raise UnknownDocument(
                f"the index names nodes that the docstore does not hold ({missing[0]!r} and "
                f"{len(missing) - 1} more); load both from one save, or build them again together"
            ) from error
        raise


def _find_missing(index: VectorStoreIndex) -> list[str]:
    """Return nodes that the docstore does not hold, and positions in the index that have no node.

    The positions come last, because an index may number its vectors in another way.
    """
    nodes = dict(index.index_struct.nodes_dict)  # nodes may be inserted meanwhile
    positions = map(str, range(faiss_index(index).ntotal))
    named_by_node = all(key == node_id for key, node_id in nodes.items())
    positions_without_node = [] if named_by_node else [at for at in positions if at not in nodes]
    return [
        node_id for node_id in nodes.values() if not index.docstore.document_exists(node_id)
    ] + positions_without_node


def _find_vectors_without_node(index: VectorStoreIndex, searched_ids: tuple[Any, ...]) -> list[str]:
    """Return the ids that the Faiss index returned and that no node has."""
    nodes = index.index_struct.nodes_dict
    return [id_ for id_ in searched_ids if str(id_).isdigit() and id_ not in nodes]
