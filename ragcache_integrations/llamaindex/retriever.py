"""RAGCacheRetriever: the vector index's own retriever, with the engine told of what it finds."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.indices.vector_store import VectorIndexRetriever, VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle

from ragcache_engine import Document, QueryShapeError, RAGCacheEngine, RetrievalInProgress
from ragcache_integrations.llamaindex.store import (
    check_searchable,
    check_supported,
    faiss_index,
    missing_nodes_named,
)
from ragcache_integrations.llamaindex.template import PromptTemplateLike, as_template
from ragcache_integrations.searchable import check_top_k, check_vector_size


class RAGCacheRetriever(VectorIndexRetriever):
    """Finds the nodes that `index.as_retriever()` finds, and tells the engine of them.

        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=2)
        nodes = retriever.retrieve("Why is the sky blue?")

    The prompt that a response synthesizer then makes of the nodes is recognised by the engine,
    which reuses what it has computed for each of them, and learns what the prompts look like to begin
    the next ones early. The time of the search counts into that prompt's TTFT.

    Asking raises, before the query is embedded: InvalidTopK; EmptyIndex; IndexOutOfStep if vectors
    and nodes differ in number. And after it: QueryShapeError if the embedding model is not the one
    the index was built with; UnknownDocument if the docstore lacks a node.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        template: PromptTemplateLike | None = None,
        **options: Any,
    ) -> None:
        """options: what VectorIndexRetriever takes; template: see `from_index`, also for the errors."""
        check_top_k(similarity_top_k)
        check_supported(index)
        super().__init__(index, similarity_top_k=similarity_top_k, **options)
        self._engine = engine
        self._template = None if template is None else as_template(template)
        self._chain = object()

    @classmethod
    def from_index(
        cls,
        index: Any,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        template: PromptTemplateLike | None = None,
        **options: Any,
    ) -> Self:
        """A retriever over a VectorStoreIndex whose vectors are in Faiss.

        similarity_top_k: nodes a question gets, at most.
        template: the synthesizer's text_qa_template, if even the first question is to begin early: a
          LlamaIndex prompt or a text such as "{context_str}\\n\\n{query_str}", both filled as in the
          mode "compact"; or a function (question, documents) -> prompt, to which nodes come as
          ragcache_engine.Document.
        options: what `index.as_retriever()` takes.
        Raises InvalidTopK, UnsupportedStore; ValueError for a template whose slots are not known. An
        index that is still empty is no error here, as nodes may be inserted later.
        """
        check_top_k(similarity_top_k)
        check_supported(index)
        stock = index.as_retriever(similarity_top_k=similarity_top_k, **options)
        return cls(
            index,
            engine=engine,
            similarity_top_k=similarity_top_k,
            template=template,
            callback_manager=stock.callback_manager,
            object_map=stock.object_map,
            **options,
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self._check()
        with self._retrieval(query_bundle.query_str) as retrieval:
            nodes = self._search(query_bundle)
            retrieval.found([engine_document(found.node) for found in nodes])
        return nodes

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self._check()
        with self._retrieval(query_bundle.query_str) as retrieval:
            # In a thread as a whole: most local embedding models, and FaissVectorStore, answer
            # their asynchronous calls by computing on the event loop.
            nodes = await asyncio.to_thread(self._search, query_bundle)
            retrieval.found([engine_document(found.node) for found in nodes])
        return nodes

    def _retrieval(self, question: str) -> AbstractContextManager[RetrievalInProgress]:
        return self._engine.retrieval(question, chain=self._chain, template=self._template)

    def _check(self) -> None:
        check_top_k(self.similarity_top_k)
        check_searchable(self._index)

    def _search(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = query_bundle.embedding
        if vector is None:
            vector = self._embed(query_bundle)
        check_vector_size(len(vector), faiss_index(self._index))
        return self._nearest(replace(query_bundle, embedding=vector))

    def _embed(self, query_bundle: QueryBundle) -> list[float]:
        if not query_bundle.embedding_strs:
            raise QueryShapeError(
                "the query has neither text nor an embedding; give it one of them"
            )
        return self._embed_model.get_agg_embedding_from_queries(query_bundle.embedding_strs)

    def _nearest(self, embedded: QueryBundle) -> list[NodeWithScore]:
        """The query's vector to its nodes. embedded.embedding: shape (faiss_index.d,)."""
        with missing_nodes_named(self._index):
            return super()._retrieve(embedded)


def engine_document(node: BaseNode) -> Document:
    """Theirs to ours: the text is what the response synthesizers write into the prompt."""
    return Document(id=node.node_id, text=node.get_content(metadata_mode=MetadataMode.LLM))
