"""RAGCacheRetriever: the vector index's own retriever that tells the engine what it finds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.indices.vector_store import VectorIndexRetriever, VectorStoreIndex
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle

from ragcache_engine import (
    Corpus,
    EngineNeeded,
    QueryShapeError,
    RAGCacheEngine,
)
from ragcache_integrations.engine_field import check_engine
from ragcache_integrations.engine_reporting import (
    listener_if_speculating,
    stream_and_tell_engine,
    tell_engine,
)
from ragcache_integrations.faiss_threads import with_faiss_threads_of_caller
from ragcache_integrations.index_guard import guard_index
from ragcache_integrations.index_server import as_server
from ragcache_integrations.llamaindex.bare_index import BareNodes, build_index, objects_by_id
from ragcache_integrations.llamaindex.documents import check_llm, document_of
from ragcache_integrations.llamaindex.engine_retriever import EngineRetriever
from ragcache_integrations.llamaindex.index_server_retriever import IndexServerRetriever
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.neighbours import corpus_of
from ragcache_integrations.llamaindex.reporting_retriever import ReportingRetriever
from ragcache_integrations.llamaindex.stages import NodeStage
from ragcache_integrations.llamaindex.store import (
    all_nodes,
    can_find_anything,
    check_supported,
    faiss_index,
    find_nearest,
)
from ragcache_integrations.llamaindex.template import PromptTemplateLike
from ragcache_integrations.search_checks import check_top_k, check_vector_size
from ragcache_integrations.stage_stream import iterate_in_thread
from ragcache_integrations.staging import OnStage

_TAKEN_FROM_INDEX = ("callback_manager", "object_map")


class RAGCacheRetriever(EngineRetriever, VectorIndexRetriever):
    """Finds the nodes that `index.as_retriever()` finds, and tells the engine about them.

        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=2)
        nodes = retriever.retrieve("Why is the sky blue?")

    Examples:
        An index and an engine, both without a model:

        >>> import faiss, numpy
        >>> from llama_index.core import MockEmbedding
        >>> from llama_index.core.query_engine import RetrieverQueryEngine
        >>> from llama_index.core.schema import TextNode
        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> embed_model = MockEmbedding(embed_dim=4)
        >>> nodes = [TextNode(id_="sky", text="The sky looks blue because air scatters light.")]
        >>> vectors = faiss.IndexFlatL2(4)
        >>> embedded = embed_model.get_text_embedding_batch([node.text for node in nodes])
        >>> vectors.add(numpy.array(embedded, dtype="float32"))
        >>> retriever = RAGCacheRetriever.from_faiss(
        ...     vectors, nodes, engine=engine, embed_model=embed_model, similarity_top_k=1
        ... )
        >>> [found.node.node_id for found in retriever.retrieve("Why is the sky blue?")]
        ['sky']
        >>> llm = RAGCacheLLM(engine=engine, temperature=0)
        >>> answer = RetrieverQueryEngine.from_args(retriever, llm=llm).query("Why is it blue?")
        >>> [found.node.node_id for found in answer.source_nodes]
        ['sky']
        >>> engine.close()

    The engine recognises the nodes in the prompt that a response synthesizer then writes. It reuses
    what it has computed for them, as far as an earlier prompt began in the same way. It also remembers
    what the last prompt looked like, to start the next one early: while the search still runs, with the
    nodes found so far. With the engine's `speculation` "off", nothing starts early. The search's
    time counts into the TTFT of its prompt.

    The index may change while it is searched, also from other threads: changes wait for the searches of
    RAGCacheRetrievers, and these for changes. A search passes over vectors that have no node, such as
    those that `refresh_ref_docs` leaves behind (docs/guides/updating.md).

    A search of an empty index finds nothing, as with the index's own retriever. Before the query is
    embedded, a search raises InvalidTopK. After it: QueryShapeError if the index was built with another
    embedding model; UnknownDocument if the docstore lacks a node; IndexOutOfStep if none of the vectors
    found has a node.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
        **options: Any,
    ) -> None:
        """Make a retriever over an index. options: what VectorIndexRetriever takes.

        Other arguments and errors: see `from_index`.
        """
        check_top_k(similarity_top_k)
        check_supported(index)
        check_engine(engine)
        check_llm(llm, engine)
        super().__init__(index, similarity_top_k=similarity_top_k, **options)
        guard_index(faiss_index(index))  # from now on, changes wait for searches
        self._set_engine(engine, template, llm, chain)

    @classmethod
    def from_index(
        cls,
        index: Any,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
        **options: Any,
    ) -> Self:
        """Make a retriever over a VectorStoreIndex whose vectors are in Faiss.

        similarity_top_k: the most nodes a question gets.
        template: the synthesizer's text_qa_template; give it if even the first question should
          start early. A LlamaIndex prompt or a text such as "{context_str}\\n\\n{query_str}", both
          filled as in the mode "compact"; or a function (question, documents) -> prompt, which gets
          the nodes as ragcache_engine.Document.
        llm: the LLM that the query engine asks; give it with the template. It says how answers are
          sampled, which tenant asks, and how the template is written.
        chain: a key that distinguishes this retriever's prompts from those of others; by default unique.
          Pass it to `engine.warm(chain=...)` to write prompts as this retriever's query engine
          does.
        options: what `index.as_retriever()` takes, and callback_manager.
        Raises InvalidTopK, UnsupportedStore; InvalidArgument unless engine is a RAGCacheEngine, and the
        llm's engine if there is one; ValueError for a template whose variables cannot be
        told apart. The index may still be empty, because nodes may be inserted later.
        """
        check_top_k(similarity_top_k)
        check_supported(index)
        # as_retriever() sets these itself and takes no others.
        own = {name: options.pop(name) for name in _TAKEN_FROM_INDEX if name in options}
        stock = index.as_retriever(similarity_top_k=similarity_top_k, **options)
        own = {name: getattr(stock, name) for name in _TAKEN_FROM_INDEX} | own
        return cls(
            index,
            engine=engine,
            similarity_top_k=similarity_top_k,
            template=template,
            llm=llm,
            chain=chain,
            **own,
            **options,
        )

    @classmethod
    def from_faiss(
        cls,
        faiss_index: Any,
        nodes: BareNodes,
        *,
        engine: RAGCacheEngine,
        embed_model: BaseEmbedding | None = None,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
        **options: Any,
    ) -> Self:
        """Make a retriever over a Faiss index that was built elsewhere, with the nodes of its vectors.

        faiss_index: any faiss.Index; it is not copied.
        nodes: one for each vector, in the order of the vectors; or a mapping to nodes from the ids
          that the index returns (those of an IndexIDMap, for example). They need no embedding.
        embed_model: the model the vectors were made with; None takes that of Settings.
        similarity_top_k, template, llm, chain: see `from_index`.
        options: what VectorIndexRetriever takes.
        Embeds nothing. Raises InvalidTopK; UnsupportedStore if faiss_index is not a Faiss index;
        IndexOutOfStep unless each vector has one node; ValueError for a template whose variables cannot
        be told apart.
        """
        check_top_k(similarity_top_k)
        return cls(
            build_index(faiss_index, nodes, embed_model),
            engine=engine,
            similarity_top_k=similarity_top_k,
            template=template,
            llm=llm,
            chain=chain,
            **{"object_map": objects_by_id(nodes), **options},
        )

    @staticmethod
    def from_retriever(
        retriever: BaseRetriever,
        *,
        engine: RAGCacheEngine,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
    ) -> ReportingRetriever:
        """Make a retriever of any other one, over any store, that tells the engine what it finds.

        retriever: a retriever of an index in Chroma, Qdrant or pgvector, BM25, a fusion of several, or a
          retriever of your own.
        template, llm, chain: see `from_index`.
        There are no stages: the engine hears of the nodes when the search has ended, and may begin the
        answer between then and the prompt. Of retrievers inside this one, such as those of a fusion, it
        hears at their own end, and prepares what they found. Raises
        InvalidArgument for what is no retriever, or tells an engine already, and for an engine and an llm
        as `from_index` does; ValueError for a template whose variables cannot be told apart.
        """
        return ReportingRetriever(retriever, engine=engine, template=template, llm=llm, chain=chain)

    @staticmethod
    def from_server(
        server: Any,
        *,
        engine: RAGCacheEngine,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        embed_model: BaseEmbedding | None = None,
        api_key: str | None = None,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
        callback_manager: CallbackManager | None = None,
    ) -> IndexServerRetriever:
        """Make a retriever over a Faiss index in another process, which `ragcache index serve` searches.

        server: its URL, such as "http://host:8100", or an IndexServer.
        embed_model: the model that the index was built with; None: the server embeds questions.
        api_key: one of the keys in the server's file.
        similarity_top_k, template, llm, chain: see `from_index`.
        callback_manager: sees each retrieval; None: that of Settings.
        Nothing is sent before the first search. That raises ServerUnreachable, KeyRefused, ServerBusy,
        ServerLost; QueryShapeError for a vector that does not fit the index; InvalidArgument without a
        model where the server has none either. This raises InvalidTopK; InvalidArgument for what is no
        URL, and for an engine and an llm as `from_index` does; BackendUnavailable without the extra
        `client`; ValueError for a template whose variables cannot be told apart.
        """
        return IndexServerRetriever(
            as_server(server, api_key),
            engine=engine,
            similarity_top_k=similarity_top_k,
            embed_model=embed_model,
            template=template,
            llm=llm,
            chain=chain,
            callback_manager=callback_manager,
        )

    @classmethod
    def with_settings_of(cls, stock: VectorIndexRetriever, *, engine: RAGCacheEngine) -> Self:
        """Make a retriever over the index of a stock one, with all its settings.

        Raises UnsupportedStore; InvalidArgument unless engine is a RAGCacheEngine.
        """
        ours = cls(stock._index, engine=engine)
        ours.__dict__.update(vars(stock))
        return ours

    def __repr__(self) -> str:
        vectors = faiss_index(self._index).ntotal
        return (
            f"RAGCacheRetriever({vectors} vectors, similarity_top_k={self.similarity_top_k}, "
            f"engine={self._engine!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        name = type(self).__name__
        raise EngineNeeded(
            f"an engine lives in one process, so {name} cannot be pickled: save the index with "
            f"index.storage_context.persist(), load it there, and make another retriever of it with "
            f"{name}.from_index(index, engine=...)"
        )

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        check_top_k(self.similarity_top_k)
        with self._open_retrieval(query_bundle) as retrieval:
            corpus = self._corpus()
            on_stage = listener_if_speculating(self._engine, retrieval, document_of, corpus)
            nodes = self._search(query_bundle, on_stage)
            return tell_engine(retrieval, nodes, document_of, corpus)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        check_top_k(self.similarity_top_k)
        with self._open_retrieval(query_bundle) as retrieval:
            # Search in a thread: the asynchronous methods of FaissVectorStore and of most local
            # embedding models compute on the event loop.
            corpus = self._corpus()
            on_stage = listener_if_speculating(self._engine, retrieval, document_of, corpus)
            run = self._engine.threads.search
            search = partial(self._search, query_bundle, on_stage)
            nodes = await run(with_faiss_threads_of_caller(search))
            tell = partial(tell_engine, retrieval, nodes, document_of, corpus)
            # Looking up neighbours embeds the nodes, which may take long.
            return tell() if corpus is None else await run(tell)

    def stream_stages(self, query: str | QueryBundle) -> Generator[NodeStage]:
        """Yield what `retrieve` would return if the search ended now; at the end, what it returns.

            for stage in retriever.stream_stages("Why is the sky blue?"):
                show(stage.nodes, stage.final)

        Stages are some milliseconds apart, so a quick search has only the last one. docs/search.md
        says which indexes are searched in stages. Closing the generator stops the search. The engine
        hears of the search as with `retrieve`, but callbacks do not. Nodes that stand for other objects
        are not followed.
        Errors: those of `retrieve`, raised with the first stage.
        """
        check_top_k(self.similarity_top_k)
        bundle = QueryBundle(query) if isinstance(query, str) else query

        def search(on_stage: OnStage[list[NodeWithScore]]) -> list[NodeWithScore]:
            return self._search(bundle, on_stage)

        for stage in stream_and_tell_engine(
            self._open_retrieval(bundle), document_of, search, self._corpus()
        ):
            yield NodeStage(*stage)

    def astream_stages(self, query: str | QueryBundle) -> AsyncGenerator[NodeStage]:
        """Yield what `stream_stages` yields. The event loop is not blocked: the search runs in threads.

        Closing the generator, or cancelling the task that reads it, stops the search and does not wait
        for the piece that is being searched.
        """
        return iterate_in_thread(self.stream_stages(query))

    def _search(
        self, query_bundle: QueryBundle, on_stage: OnStage[list[NodeWithScore]] | None
    ) -> list[NodeWithScore]:
        if not can_find_anything(self._index):
            return []
        vector = query_bundle.embedding
        if vector is None:
            vector = self._embed(query_bundle)
        check_vector_size(len(vector), faiss_index(self._index))
        return find_nearest(self, replace(query_bundle, embedding=vector), on_stage)

    def _all_nodes(self) -> Sequence[BaseNode]:
        return all_nodes(self._index)

    def _corpus(self) -> Corpus | None:
        if self._engine.config.reuse == "prefix" or not can_find_anything(self._index):
            return None
        return corpus_of(self, document_of)

    def _embed(self, query_bundle: QueryBundle) -> list[float]:
        if not query_bundle.embedding_strs:
            raise QueryShapeError(
                "the query has neither text nor an embedding; give it one of them"
            )
        return self._embed_model.get_agg_embedding_from_queries(query_bundle.embedding_strs)
