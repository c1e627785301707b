"""Hears of the searches inside a retriever: those of an ensemble, or the one before a reranker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from ragcache_engine import Corpus, RetrievalInProgress
from ragcache_integrations.langchain.engine_retriever import engine_document


class InnerSearches(BaseCallbackHandler):
    """Tells the engine what each retriever inside another one finds, as candidates for the prompt.

    LangChain tells callbacks of every run inside a run. The first run is the whole retriever's own.
    corpus: where the neighbours of documents are looked up; None if nothing is borrowed behind them.
    """

    def __init__(self, retrieval: RetrievalInProgress, corpus: Corpus | None) -> None:
        self._retrieval = retrieval
        self._corpus = corpus
        self._whole: UUID | None = None

    def added_to(self, config: RunnableConfig | None) -> RunnableConfig:
        """Return the config with this among its callbacks."""
        return merge_configs(ensure_config(config), {"callbacks": [self]})

    def on_chain_start(
        self, serialized: dict[str, Any], inputs: dict[str, Any], *, run_id: UUID, **kwargs: Any
    ) -> Any:
        self._whole = self._whole or run_id

    def on_retriever_start(
        self, serialized: dict[str, Any], query: str, *, run_id: UUID, **kwargs: Any
    ) -> Any:
        self._whole = self._whole or run_id

    def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> Any:
        if run_id != self._whole and documents:
            self._retrieval.candidates(list(map(engine_document, documents)), self._corpus)


class AsyncInnerSearches(InnerSearches):
    """The same for coroutines.

    A handler without coroutines would run in the application's own threads; and beside one that says
    `run_inline`, LangChain tells the others of no model's start.
    """

    async def on_chain_start(
        self, serialized: dict[str, Any], inputs: dict[str, Any], *, run_id: UUID, **kwargs: Any
    ) -> None:
        super().on_chain_start(serialized, inputs, run_id=run_id)

    async def on_retriever_start(
        self, serialized: dict[str, Any], query: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        super().on_retriever_start(serialized, query, run_id=run_id)

    async def on_retriever_end(
        self, documents: Sequence[Document], *, run_id: UUID, **kwargs: Any
    ) -> None:
        super().on_retriever_end(documents, run_id=run_id)
