"""LlamaIndex's nodes as the engine's documents, and the LLM that a retriever is told of."""

from __future__ import annotations

from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from ragcache_engine import Document, InvalidArgument, RAGCacheEngine
from ragcache_integrations.document_labels import label_of
from ragcache_integrations.engine_field import check_same_engine
from ragcache_integrations.llamaindex.llm import RAGCacheLLM


def document_of(found: NodeWithScore) -> Document:
    """Return a node that was found as the engine's Document."""
    return engine_document(found.node)


def engine_document(node: BaseNode) -> Document:
    """Return LlamaIndex's node as the engine's Document.

    Its text is the text that response synthesizers write into the prompt.
    """
    place = {"source": node.ref_doc_id, "start_index": getattr(node, "start_char_idx", None)}
    return Document(
        id=node.node_id,
        text=node.get_content(metadata_mode=MetadataMode.LLM),
        label=label_of(node.node_id, {**place, **node.metadata}),
    )


def check_llm(llm: Any, engine: RAGCacheEngine) -> None:
    """Raise InvalidArgument unless this is None or a RAGCacheLLM on this engine."""
    if llm is None:
        return
    if not isinstance(llm, RAGCacheLLM):
        raise InvalidArgument(
            f"llm= takes a RAGCacheLLM, got {type(llm).__name__}; leave it out for other LLMs"
        )
    check_same_engine(engine, llm)
