"""A retriever of any kind, which also tells the engine what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.vectorstores import VectorStore
from pydantic import Field

from ragcache_engine import Corpus, InvalidArgument, RetrievalInProgress
from ragcache_integrations.engine_reporting import tell_engine
from ragcache_integrations.langchain.engine_retriever import EngineRetriever, engine_document
from ragcache_integrations.langchain.inner_searches import AsyncInnerSearches, InnerSearches
from ragcache_integrations.langchain.neighbours import EVERYTHING, corpus_of_other
from ragcache_integrations.neighbour_choice import borrows_behind_neighbours, warn_of_no_neighbours


class ReportingRetriever(EngineRetriever):
    """Finds what another retriever finds; RAGCacheRetriever.from_retriever makes it.

    The engine recognises the documents in the prompt that the chain then writes, and remembers what
    the chain's last prompt looked like. It hears, too, what the retrievers inside the other one find,
    such as those of an ensemble, or the one whose documents a reranker chooses from. Callbacks see the
    run of the other retriever, with its name and its tags, and no run of this one. The other retriever's
    errors come out unchanged. So do, without telling the engine, answers to a question that is no text,
    and answers that are no list of Documents.

    retriever: the other one.
    """

    retriever: Runnable[str, list[Document]] = Field(exclude=True)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if borrows_behind_neighbours(self.engine) and self._corpus() is None:
            warn_of_no_neighbours(self.retriever)

    def invoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return what the other retriever returns, and tell the engine."""
        if not isinstance(input, str):
            return self.retriever.invoke(input, config, **kwargs)
        with self._open_retrieval(input) as retrieval:
            config = InnerSearches(retrieval, self._corpus(kwargs)).added_to(config)
            found = self.retriever.invoke(input, config, **kwargs)
            return _tell_if_documents(retrieval, found, self._corpus(kwargs))

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Do what `invoke` does, for coroutines."""
        if not isinstance(input, str):
            return await self.retriever.ainvoke(input, config, **kwargs)
        with self._open_retrieval(input) as retrieval:
            config = AsyncInnerSearches(retrieval, self._corpus(kwargs)).added_to(config)
            found = await self.retriever.ainvoke(input, config, **kwargs)
            corpus = self._corpus(kwargs)
            if corpus is None:
                return _tell_if_documents(retrieval, found, None)
            # Looking up neighbours embeds the documents, which may take long.
            tell = partial(_tell_if_documents, retrieval, found, corpus)
            return await self.engine.threads.search(tell)

    def _all_documents(self) -> Sequence[Document]:
        raise InvalidArgument(
            f"{self.get_name()} does not tell all documents of its store: give those that it has"
        )

    def _corpus(self, options: Mapping[str, Any] = EVERYTHING) -> Corpus | None:
        """Return where to look up neighbours; None if nothing is borrowed, or nobody can be asked."""
        if not borrows_behind_neighbours(self.engine):
            return None
        return corpus_of_other(self.retriever, engine_document, options)

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        return self.retriever.get_name(suffix, name=name)

    # A BaseRetriever has these two; LangChain calls them from `invoke`, which is another one here.

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self.invoke(query, {"callbacks": run_manager.get_child()}, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await self.ainvoke(query, {"callbacks": run_manager.get_child()}, **kwargs)

    def _shared_by_copies(self) -> Sequence[object]:
        return (self.retriever,)


def _tell_if_documents(
    retrieval: RetrievalInProgress, found: list[Document], corpus: Corpus | None
) -> list[Document]:
    """Tell the engine. What is no list of Documents passes through, as it would without us."""
    if isinstance(found, list) and all(isinstance(each, Document) for each in found):
        return tell_engine(retrieval, found, engine_document, corpus)
    return found


def check_retriever(retriever: Any) -> None:
    """Raise InvalidArgument unless this is a Runnable that tells no engine yet."""
    if isinstance(retriever, EngineRetriever):
        raise InvalidArgument(
            f"this {type(retriever).__name__} tells an engine already: use it as it is"
        )
    if not isinstance(retriever, Runnable):
        advice = (
            "give store.as_retriever()"
            if isinstance(retriever, VectorStore)
            else ("give a retriever, or another Runnable that finds documents for a text")
        )
        raise InvalidArgument(
            f"from_retriever takes a retriever, got {type(retriever).__name__}; {advice}"
        )
