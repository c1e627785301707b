"""Makes the VectorStoreIndex that LlamaIndex searches from a bare Faiss index and its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.data_structs import IndexDict
from llama_index.core.schema import BaseNode, IndexNode

from ragcache_engine import IndexOutOfStep, UnsupportedStore
from ragcache_integrations.search_checks import check_same_count, is_faiss_index

BareNodes = Sequence[BaseNode] | Mapping[int, BaseNode]
"""One node for each vector: in the order of the vectors, or by the ids that the Faiss index returns."""


def build_index(
    faiss_index: Any, nodes: BareNodes, embed_model: BaseEmbedding | None
) -> VectorStoreIndex:
    """Make a VectorStoreIndex of the nodes and the vectors. It embeds and copies nothing.

    Raises UnsupportedStore without a faiss.Index, IndexOutOfStep unless each vector has one node.
    """
    if not is_faiss_index(faiss_index):
        raise UnsupportedStore(
            f"from_faiss takes a faiss.Index, got {type(faiss_index).__name__}; "
            f"a VectorStoreIndex goes to from_index"
        )
    by_id = dict(nodes.items() if isinstance(nodes, Mapping) else enumerate(nodes))
    check_same_count(faiss_index.ntotal, len(by_id))
    _check_distinct(by_id)
    # Imported here because it loads Faiss, which the other classes do not need.
    from llama_index.vector_stores.faiss import FaissVectorStore

    storage = StorageContext.from_defaults(vector_store=FaissVectorStore(faiss_index=faiss_index))
    storage.docstore.add_documents(list(by_id.values()))
    struct = IndexDict()
    for vector_id, node in by_id.items():
        struct.add_node(node, text_id=str(vector_id))
    return VectorStoreIndex(index_struct=struct, storage_context=storage, embed_model=embed_model)


def objects_by_id(nodes: BareNodes) -> dict[str, Any]:
    """Return the objects that index nodes stand for, by the ids a retriever looks for."""
    every = nodes.values() if isinstance(nodes, Mapping) else nodes
    return {
        node.index_id: node.obj
        for node in every
        if isinstance(node, IndexNode) and node.obj is not None
    }


def _check_distinct(by_id: Mapping[int, BaseNode]) -> None:
    names = Counter(node.node_id for node in by_id.values())
    if len(names) < len(by_id):
        [(twice, _)] = names.most_common(1)
        raise IndexOutOfStep(
            f"the node id {twice!r} stands for more than one vector; give each node an id of its own"
        )
