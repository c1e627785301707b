"""RAGCacheRetriever: a FAISS store's own retriever, with the engine told of what it finds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, NamedTuple, Self

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStoreRetriever
from pydantic import Field, field_validator

import ragcache_engine
from ragcache_engine import RAGCacheEngine, RetrievalInProgress
from ragcache_integrations.engine_reporting import (
    listener_if_speculating,
    open_retrieval,
    stream_and_tell_engine,
    tell_engine,
)
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.store import (
    aembed,
    check_searchable,
    check_supported,
    embed,
    find_nearest,
)
from ragcache_integrations.langchain.template import PromptTemplateLike, as_template
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.stage_stream import iterate_in_thread
from ragcache_integrations.staging import OnStage

DEFAULT_K = 4


class DocumentStage(NamedTuple):
    """What a search would return if it ended now.

    documents: nearest first. fraction_done: share of the search that is behind, in (0, 1].
    final: these are what `invoke` returns.
    """

    documents: list[Document]
    fraction_done: float
    final: bool


class RAGCacheRetriever(VectorStoreRetriever):
    """Finds the documents that `store.as_retriever()` finds, and tells the engine of them.

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

    The prompt that the chain then makes of the documents is recognised by the engine, which reuses
    what it has computed for each of them, and learns what the chain's prompts look like to begin the
    next ones early: while the search still runs, on what it has found by then, unless the engine's
    `speculation` is "off". The time of the search counts into that prompt's TTFT. A filter that is a
    function is then asked about provisional documents too.

    template: the chain's prompt, if even its first question is to begin early: a LangChain prompt, a
      text such as "{context}\\n\\n{question}", or a function (question, documents) -> prompt, to which
      documents come as ragcache_engine.Document.
    document_separator: what the chain joins documents with in that template.
    llm: the RAGCacheLLM or ChatRAGCache that the chain asks, if even its first question is to begin
      early: how it draws its answers, whose tenant it is, and how it writes the template are then known.
    chain: what tells this retriever's prompts from those of others; by default its own. It is
      what `engine.warm(chain=...)` takes, to write prompts as this retriever's were.

    Asking raises, before the query is embedded: InvalidTopK; EmptyIndex; IndexOutOfStep if index
    and docstore differ in size. And after it: QueryShapeError if the embedding model is not the one
    the index was built with; UnknownDocument if the docstore lacks a document.
    """

    engine: RAGCacheEngine = Field(exclude=True, repr=False)
    template: Any = Field(default=None, exclude=True, repr=False)
    document_separator: str = "\n\n"
    llm: Any = Field(default=None, exclude=True, repr=False)
    # A field, since configurable fields make a new retriever of the fields for each call.
    chain: Hashable = Field(default_factory=object, exclude=True, repr=False)

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: Any) -> Any:
        if template is not None:
            as_template(template, "")
        return template

    @classmethod
    def from_vectorstore(
        cls,
        store: Any,
        *,
        engine: RAGCacheEngine,
        k: int = DEFAULT_K,
        search_type: str = "similarity",
        template: PromptTemplateLike | None = None,
        document_separator: str = "\n\n",
        llm: RAGCacheLLM | ChatRAGCache | None = None,
        **search_kwargs: Any,
    ) -> Self:
        """A retriever over a FaissVectorStore, or langchain_community's FAISS.

        k: documents a question gets, at most.
        search_type: "similarity", "mmr" or "similarity_score_threshold".
        search_kwargs: what the store's own retriever takes: filter, fetch_k, lambda_mult,
          score_threshold.
        template, document_separator, llm: see the class.
        Raises InvalidTopK, UnsupportedStore; ValueError for a search_type there is not, or a template
        whose slots are not known. An index
        that is still empty is no error here, as documents may be added later.
        """
        check_top_k(k)
        check_supported(store)
        return cls(
            vectorstore=store,
            engine=engine,
            search_type=search_type,
            search_kwargs={"k": k, **search_kwargs},
            template=template,
            document_separator=document_separator,
            llm=llm,
        )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = self._check_options(kwargs)
        with self._open_retrieval(query) as retrieval:
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document)
            documents = self._find_nearest(embed(self.vectorstore, query), options, on_stage)
            return tell_engine(retrieval, documents, engine_document)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        options = self._check_options(kwargs)
        with self._open_retrieval(query) as retrieval:
            vector = await aembed(self.vectorstore, query)
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document)
            documents = await run_in_executor(None, self._find_nearest, vector, options, on_stage)
            return tell_engine(retrieval, documents, engine_document)

    def stream_stages(self, query: str, **kwargs: Any) -> Generator[DocumentStage]:
        """What `invoke` would return if the search ended now, ever better, and at last what it returns.

            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
            >>> store = FaissVectorStore.from_texts(["Ice floats."], DeterministicFakeEmbedding(size=8))
            >>> retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
            >>> for stage in retriever.stream_stages("Why does ice float?"):
            ...     print(len(stage.documents), stage.final)
            1 True
            >>> engine.close()

        Stages lie some milliseconds apart, so a quick search has only the last one; see docs/search.md
        for which indexes are searched in stages. Closing the generator stops the search. The engine is
        told as by `invoke`; callbacks are not. kwargs and errors: those of `invoke`, the errors with
        the first stage.
        """
        options = self._check_options(kwargs)

        def search(on_stage: OnStage[list[Document]]) -> list[Document]:
            return self._find_nearest(embed(self.vectorstore, query), options, on_stage)

        for stage in stream_and_tell_engine(self._open_retrieval(query), engine_document, search):
            yield DocumentStage(*stage)

    def astream_stages(self, query: str, **kwargs: Any) -> AsyncGenerator[DocumentStage]:
        """`stream_stages` for asyncio: searched in threads, so the event loop stays free.

        Closing the generator, or cancelling the task that reads it, stops the search and does not wait
        for the piece that is being searched.
        """
        return iterate_in_thread(self.stream_stages(query, **kwargs))

    def _open_retrieval(self, query: str) -> AbstractContextManager[RetrievalInProgress]:
        template = self.template
        if template is not None:
            template = as_template(template, self.document_separator, self.llm)
        return open_retrieval(self.engine, query, chain=self.chain, template=template, llm=self.llm)

    def _check_options(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The search's options, once everything that can be known before it is in order."""
        options = {"k": DEFAULT_K, **self.search_kwargs, **changes}
        check_top_k(options["k"])
        check_supported(self.vectorstore)
        check_searchable(self.vectorstore)
        return options

    def _find_nearest(
        self,
        vector: Sequence[float],
        options: dict[str, Any],
        on_stage: OnStage[list[Document]] | None,
    ) -> list[Document]:
        """The query's vector to its documents."""
        return find_nearest(self.vectorstore, vector, self.search_type, options, on_stage)


def engine_document(document: Document) -> ragcache_engine.Document:
    """Theirs to ours: the text is what chains write into the prompt."""
    text = document.page_content
    # A store pickled by an early LangChain holds documents that have no id at all.
    name = getattr(document, "id", None) or sha256(text.encode()).hexdigest()
    return ragcache_engine.Document(id=name, text=text)
