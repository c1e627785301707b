"""A retriever over a Faiss index that another process serves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from llama_index.core import Settings
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from ragcache_engine import Corpus, Document, EngineNeeded, QueryShapeError, RAGCacheEngine
from ragcache_integrations.engine_field import check_engine
from ragcache_integrations.engine_reporting import (
    listener_if_speculating,
    stream_and_tell_engine,
    tell_engine,
)
from ragcache_integrations.index_server import corpus_of_server, find
from ragcache_integrations.llamaindex.documents import check_llm, document_of, engine_document
from ragcache_integrations.llamaindex.engine_retriever import EngineRetriever
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.stages import NodeStage
from ragcache_integrations.llamaindex.template import PromptTemplateLike
from ragcache_integrations.neighbour_choice import borrows_behind_neighbours
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.stage_stream import iterate_in_thread
from ragcache_integrations.staging import OnStage

if TYPE_CHECKING:
    from ragcache_engine.index_server import IndexedDocument

logger = logging.getLogger(__name__)

NODE = "_node_content"
"""Where LlamaIndex keeps a whole node in the metadata of a store that knows texts and metadata only."""


class IndexServerRetriever(EngineRetriever):
    """Finds what an index server finds; RAGCacheRetriever.from_server makes it.

    The engine hears of each stage of the search, as the server sends it.
    """

    def __init__(
        self,
        server: Any,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int,
        embed_model: BaseEmbedding | None = None,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        """Make a retriever. server: an IndexServer. The others: see RAGCacheRetriever.from_server."""
        check_top_k(similarity_top_k)
        check_engine(engine)
        check_llm(llm, engine)
        BaseRetriever.__init__(self, callback_manager or Settings.callback_manager)
        self._server = server
        self._embed_model = embed_model
        self.similarity_top_k = similarity_top_k
        self._set_engine(engine, template, llm, chain)

    def __repr__(self) -> str:
        return f"IndexServerRetriever({self._server!r}, similarity_top_k={self.similarity_top_k})"

    def __getstate__(self) -> dict[str, Any]:
        raise EngineNeeded(
            "an engine lives in one process, so this retriever cannot be pickled: make another one there "
            "with RAGCacheRetriever.from_server"
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        check_top_k(self.similarity_top_k)
        with self._open_retrieval(query_bundle) as retrieval:
            corpus = self._corpus()
            on_stage = listener_if_speculating(self._engine, retrieval, document_of, corpus)
            nodes = self._find(query_bundle, on_stage)
            return tell_engine(retrieval, nodes, document_of, corpus)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        check_top_k(self.similarity_top_k)
        apart = self._engine.threads.search
        with self._open_retrieval(query_bundle) as retrieval:
            corpus = await apart(self._corpus)
            on_stage = listener_if_speculating(self._engine, retrieval, document_of, corpus)
            nodes = await apart(partial(self._find, query_bundle, on_stage))
            tell = partial(tell_engine, retrieval, nodes, document_of, corpus)
            return tell() if corpus is None else await apart(tell)

    def stream_stages(self, query: str | QueryBundle) -> Generator[NodeStage]:
        """Yield what `retrieve` would return if the search ended now; at the end, what it returns.

        As RAGCacheRetriever.stream_stages. Closing the generator ends the search when the server has sent
        its next stage.
        """
        check_top_k(self.similarity_top_k)
        bundle = QueryBundle(query) if isinstance(query, str) else query
        search = partial(self._find, bundle)
        for stage in stream_and_tell_engine(
            self._open_retrieval(bundle), document_of, search, self._corpus()
        ):
            yield NodeStage(*stage)

    def astream_stages(self, query: str | QueryBundle) -> AsyncGenerator[NodeStage]:
        """Yield what `stream_stages` yields. The event loop is not blocked."""
        return iterate_in_thread(self.stream_stages(query))

    def _find(
        self, bundle: QueryBundle, on_stage: OnStage[list[NodeWithScore]] | None
    ) -> list[NodeWithScore]:
        question = self._question(bundle)
        return find(self._server, question, self.similarity_top_k, _found, on_stage)

    def _question(self, bundle: QueryBundle) -> str | Sequence[float]:
        if bundle.embedding is not None:
            return bundle.embedding
        if not bundle.embedding_strs:
            raise QueryShapeError(
                "the query has neither text nor an embedding; give it one of them"
            )
        if self._embed_model is None:
            if len(bundle.embedding_strs) > 1:
                raise QueryShapeError(
                    "the server embeds one text a question, and this one has several: give embed_model="
                )
            return bundle.embedding_strs[0]
        return self._embed_model.get_agg_embedding_from_queries(bundle.embedding_strs)

    def _all_nodes(self) -> Sequence[BaseNode]:
        return [_node(one) for one in self._server.documents()]

    def _corpus(self) -> Corpus | None:
        if not borrows_behind_neighbours(self._engine):
            return None
        return corpus_of_server(self._server, _engine_document)

    def _shared_by_copies(self) -> Sequence[object]:
        return (self._server, self._embed_model)


def _node(found: IndexedDocument) -> BaseNode:
    """Return a document as a node: as LlamaIndex wrote it, or with its text alone in prompts."""
    if NODE in found.metadata:
        try:
            return metadata_dict_to_node(dict(found.metadata), text=found.text)
        except Exception as error:  # another program's, under LlamaIndex's name
            logger.debug("the node %r cannot be read: %r", found.id, error)
    names = list(found.metadata)
    return TextNode(
        id_=found.id,
        text=found.text,
        metadata=dict(found.metadata),
        excluded_llm_metadata_keys=names,
        excluded_embed_metadata_keys=names,
    )


def _found(found: IndexedDocument, distance: float) -> NodeWithScore:
    return NodeWithScore(node=_node(found), score=distance)


def _engine_document(found: IndexedDocument) -> Document:
    return engine_document(_node(found))
