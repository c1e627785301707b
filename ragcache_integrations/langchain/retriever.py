"""RAGCacheRetriever: a FAISS store's own retriever that tells the engine what it finds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStoreRetriever

from ragcache_engine import Corpus, InvalidArgument, RAGCacheEngine
from ragcache_integrations.engine_field import check_engine
from ragcache_integrations.engine_reporting import (
    listener_if_speculating,
    stream_and_tell_engine,
    tell_engine,
)
from ragcache_integrations.index_server import as_server
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.engine_retriever import (
    EngineRetriever,
    check_llm,
    engine_document,
)
from ragcache_integrations.langchain.index_server_retriever import IndexServerRetriever
from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.neighbours import corpus_of
from ragcache_integrations.langchain.reporting_retriever import ReportingRetriever, check_retriever
from ragcache_integrations.langchain.stages import DocumentStage
from ragcache_integrations.langchain.store import (
    all_documents,
    asearch,
    can_find_anything,
    check_supported,
    search,
)
from ragcache_integrations.langchain.template import PromptTemplateLike
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.stage_stream import iterate_in_thread

DEFAULT_K = 4


class RAGCacheRetriever(EngineRetriever, VectorStoreRetriever):
    """Finds the documents that `store.as_retriever()` finds, and tells the engine about them.

        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> store = FaissVectorStore.from_texts(
        ...     ["The sky scatters blue light.", "Tides follow the moon."],
        ...     DeterministicFakeEmbedding(size=16),
        ... )
        >>> retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
        >>> len(retriever.invoke("Why is the sky blue?"))
        2
        >>> engine.close()

    The engine recognises the documents in the prompt that the chain then writes. It reuses what it
    has computed for them, as far as an earlier prompt began in the same way. It also remembers what
    the chain's last prompt looked like, to start the next one early: while the search still runs, with
    the documents found so far. With the engine's `speculation` "off", nothing starts early. The
    search's time counts into the TTFT of its prompt. A filter that is a function is also called for
    provisional documents.

    template: the chain's prompt; give it if even the first question should start early. A LangChain
      prompt, a text such as "{context}\\n\\n{question}", or a function (question, documents) ->
      prompt, which gets the documents as ragcache_engine.Document.
    document_separator: the text with which the chain joins the documents in that template.
    llm: the RAGCacheLLM or ChatRAGCache that the chain asks; give it with the template. It says how
      answers are sampled, which tenant asks, and how the template is written.
    chain: a key that distinguishes this retriever's prompts from those of others; by default unique.
      Pass it to `engine.warm(chain=...)` to write prompts as this retriever's chain does.

    A search of an empty store finds nothing, as with the store's own retriever. Before the query is
    embedded, a search raises InvalidTopK. After it: QueryShapeError if the index was built with another
    embedding model; UnknownDocument if the docstore lacks a document; IndexOutOfStep if none of the
    vectors found has a document.
    """

    @classmethod
    def from_vectorstore(
        cls,
        store: Any,
        *,
        engine: RAGCacheEngine,
        k: int | None = None,
        search_type: str = "similarity",
        search_kwargs: Mapping[str, Any] | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        template: PromptTemplateLike | None = None,
        document_separator: str = "\n\n",
        llm: RAGCacheLLM | ChatRAGCache | None = None,
        **search_options: Any,
    ) -> Self:
        """Make a retriever over a FaissVectorStore, or over langchain_community's FAISS.

        k: the most documents a question gets; 4 by default.
        search_type: "similarity", "mmr" or "similarity_score_threshold".
        search_options: what the store's own retriever takes in its search_kwargs: filter, fetch_k,
          lambda_mult, score_threshold. search_kwargs takes them too, and k, as `as_retriever` does.
        tags, metadata, name: as `as_retriever` takes them; the tags are its own by default.
        template, document_separator, llm: see the class.
        Raises InvalidTopK; InvalidArgument for a k that differs from that in search_kwargs, and unless
        engine is a RAGCacheEngine, and the llm's engine if there is one; UnsupportedStore; ValueError for
        an unknown search_type, or for a template whose variables cannot be told apart. The index may
        still be empty, because documents may be added later.
        """
        options = {**(search_kwargs or {}), **search_options}
        if k is not None and options.setdefault("k", k) != k:
            raise InvalidArgument(f"k={k} and search_kwargs={search_kwargs}: give one of them")
        options = {"k": DEFAULT_K, **options}
        check_top_k(options["k"])
        check_supported(store)
        check_engine(engine)
        check_llm(llm, engine)
        return cls(
            vectorstore=store,
            engine=engine,
            search_type=search_type,
            search_kwargs=options,
            tags=tags or store.as_retriever().tags,
            metadata=metadata,
            name=name,
            template=template,
            document_separator=document_separator,
            llm=llm,
        )

    @staticmethod
    def from_retriever(
        retriever: Runnable[str, list[Document]],
        *,
        engine: RAGCacheEngine,
        template: PromptTemplateLike | None = None,
        document_separator: str = "\n\n",
        llm: RAGCacheLLM | ChatRAGCache | None = None,
    ) -> ReportingRetriever:
        """Make a retriever of any other one, over any store, that tells the engine what it finds.

        retriever: finds documents for a question: a retriever of Chroma, Qdrant or pgvector, BM25, an
          ensemble, one with a reranker, or another Runnable from a text to documents.
        template, document_separator, llm: see the class.
        There are no stages: the engine hears of the documents when the search has ended, and may begin
        the answer between then and the prompt. Of retrievers inside this one, such as the one before a
        reranker, it hears at their own end, and prepares what they found. Raises
        InvalidArgument for what is no such Runnable, or tells an engine already, and for an engine and an
        llm as `from_vectorstore` does; ValueError for a template whose variables cannot be told apart.
        """
        check_retriever(retriever)
        check_engine(engine)
        check_llm(llm, engine)
        return ReportingRetriever(
            retriever=retriever,
            engine=engine,
            template=template,
            document_separator=document_separator,
            llm=llm,
        )

    @staticmethod
    def from_server(
        server: Any,
        *,
        engine: RAGCacheEngine,
        k: int = DEFAULT_K,
        embeddings: Embeddings | None = None,
        api_key: str | None = None,
        template: PromptTemplateLike | None = None,
        document_separator: str = "\n\n",
        llm: RAGCacheLLM | ChatRAGCache | None = None,
    ) -> IndexServerRetriever:
        """Make a retriever over a Faiss index in another process, which `ragcache index serve` searches.

        server: its URL, such as "http://host:8100", or an IndexServer.
        k: the most documents a question gets.
        embeddings: the model that the index was built with; None: the server embeds questions.
        api_key: one of the keys in the server's file.
        template, document_separator, llm: see the class.
        Nothing is sent before the first search. That raises InvalidTopK, ServerUnreachable, KeyRefused,
        ServerBusy, ServerLost; QueryShapeError for a vector that does not fit the index; InvalidArgument
        without embeddings where the server has none either. This raises InvalidArgument for what is no
        URL, and for an engine and an llm as `from_vectorstore` does; BackendUnavailable without the extra
        `client`; ValueError for a template whose variables cannot be told apart.
        """
        check_top_k(k)
        check_engine(engine)
        check_llm(llm, engine)
        return IndexServerRetriever(
            server=as_server(server, api_key),
            engine=engine,
            k=k,
            embeddings=embeddings,
            template=template,
            document_separator=document_separator,
            llm=llm,
        )

    def _shared_by_copies(self) -> Sequence[object]:
        return (self.vectorstore,)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = self._check_options(kwargs)
        with self._open_retrieval(query) as retrieval:
            corpus = self._corpus(options)
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document, corpus)
            documents = search(self.vectorstore, query, self.search_type, options, on_stage)
            return tell_engine(retrieval, documents, engine_document, corpus)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = self._check_options(kwargs)
        with self._open_retrieval(query) as retrieval:
            corpus = self._corpus(options)
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document, corpus)
            run = partial(asearch, self.vectorstore, query, self.search_type, options)
            documents = await run(self.engine.threads.search, on_stage)
            tell = partial(tell_engine, retrieval, documents, engine_document, corpus)
            # Looking up neighbours embeds the documents, which may take long.
            return tell() if corpus is None else await self.engine.threads.search(tell)

    def stream_stages(self, query: str, **kwargs: Any) -> Generator[DocumentStage]:
        """Yield what `invoke` would return if the search ended now; at the end, what it returns.

            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
            >>> store = FaissVectorStore.from_texts(["Ice floats."], DeterministicFakeEmbedding(size=8))
            >>> retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
            >>> for stage in retriever.stream_stages("Why does ice float?"):
            ...     print(len(stage.documents), stage.final)
            1 True
            >>> engine.close()

        Stages are some milliseconds apart, so a quick search has only the last one. docs/search.md says
        which indexes are searched in stages. Closing the generator stops the search. The engine hears
        of the search as with `invoke`, but callbacks do not. kwargs: those of `invoke`. Errors: those
        of `invoke`, raised with the first stage.
        """
        options = self._check_options(kwargs)

        run = partial(search, self.vectorstore, query, self.search_type, options)
        telling = stream_and_tell_engine(
            self._open_retrieval(query), engine_document, run, self._corpus(options)
        )
        for stage in telling:
            yield DocumentStage(*stage)

    def astream_stages(self, query: str, **kwargs: Any) -> AsyncGenerator[DocumentStage]:
        """Yield what `stream_stages` yields. The event loop is not blocked: the search runs in threads.

        Closing the generator, or cancelling the task that reads it, stops the search and does not wait
        for the piece that is being searched.
        """
        return iterate_in_thread(self.stream_stages(query, **kwargs))

    def _all_documents(self) -> Sequence[Document]:
        return all_documents(self.vectorstore)

    def _corpus(self, options: Mapping[str, Any] | None = None) -> Corpus | None:
        """Return where to look up neighbours of documents that are searched with these options.

        options: None: the retriever's own. Return None if nothing is borrowed.
        """
        if self.engine.config.reuse == "prefix" or not can_find_anything(self.vectorstore):
            return None
        return corpus_of(
            self.vectorstore, engine_document, self.search_kwargs if options is None else options
        )

    def _check_options(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the search's options, after all checks that need no embedding."""
        options = {"k": DEFAULT_K, **self.search_kwargs, **changes}
        check_top_k(options["k"])
        check_supported(self.vectorstore)
        return options
