"""A retriever of any kind, which also tells the engine what it finds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType

from ragcache_engine import (
    Corpus,
    EngineNeeded,
    InvalidArgument,
    RAGCacheEngine,
)
from ragcache_integrations.engine_field import check_engine
from ragcache_integrations.engine_reporting import tell_engine
from ragcache_integrations.llamaindex.documents import check_llm, document_of
from ragcache_integrations.llamaindex.engine_retriever import EngineRetriever
from ragcache_integrations.llamaindex.inner_searches import telling_inner_searches
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.neighbours import corpus_of_other
from ragcache_integrations.llamaindex.template import PromptTemplateLike
from ragcache_integrations.neighbour_choice import borrows_behind_neighbours, warn_of_no_neighbours


class ReportingRetriever(EngineRetriever):
    """Finds what another retriever finds; RAGCacheRetriever.from_retriever makes it.

    The engine recognises the nodes in the prompt that a response synthesizer then writes, and remembers
    what the last one looked like. It hears, too, what the retrievers inside the other one find, such as
    those of a fusion. Callbacks and events see the other retriever's run. Its errors come out
    unchanged.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        engine: RAGCacheEngine,
        template: PromptTemplateLike | None = None,
        llm: RAGCacheLLM | None = None,
        chain: Hashable = None,
    ) -> None:
        """Make a retriever of another one. Arguments and errors: see RAGCacheRetriever.from_retriever."""
        _check_retriever(retriever)
        check_engine(engine)
        check_llm(llm, engine)
        # Not super().__init__, which would set the callback manager, that is the other retriever's.
        self.object_map = {}
        self._verbose = False
        self._retriever = retriever
        self._set_engine(engine, template, llm, chain)
        if borrows_behind_neighbours(engine) and self._corpus() is None:
            warn_of_no_neighbours(retriever)

    def __repr__(self) -> str:
        return f"ReportingRetriever({type(self._retriever).__name__}, engine={self._engine!r})"

    @property
    def callback_manager(self) -> CallbackManager:
        """The other retriever's."""
        return self._retriever.callback_manager

    @callback_manager.setter
    def callback_manager(self, callback_manager: CallbackManager) -> None:
        self._retriever.callback_manager = callback_manager

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        with self._open_retrieval(str_or_query_bundle) as retrieval:
            with telling_inner_searches(retrieval, self._corpus()):
                nodes = self._retriever.retrieve(str_or_query_bundle)
            return tell_engine(retrieval, nodes, document_of, self._corpus())

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        with self._open_retrieval(str_or_query_bundle) as retrieval:
            with telling_inner_searches(retrieval, self._corpus()):
                nodes = await self._retriever.aretrieve(str_or_query_bundle)
            corpus = self._corpus()
            if corpus is None:
                return tell_engine(retrieval, nodes, document_of)
            # Looking up neighbours embeds the nodes, which may take long.
            tell = partial(tell_engine, retrieval, nodes, document_of, corpus)
            return await self._engine.threads.search(tell)

    def _all_nodes(self) -> Sequence[BaseNode]:
        raise InvalidArgument(
            f"{type(self._retriever).__name__} does not tell all nodes of its store: give those "
            f"that it has"
        )

    def _corpus(self) -> Corpus | None:
        if not borrows_behind_neighbours(self._engine):
            return None
        return corpus_of_other(self._retriever, document_of)

    # A BaseRetriever has these two; LlamaIndex calls them from `retrieve`, which is another one here.

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self.aretrieve(query_bundle)

    def get_prompts(self) -> dict[str, Any]:
        return self._retriever.get_prompts()

    def update_prompts(self, prompts_dict: dict[str, Any]) -> None:
        self._retriever.update_prompts(prompts_dict)

    def __getstate__(self) -> dict[str, Any]:
        raise EngineNeeded(
            "an engine lives in one process, so this retriever cannot be pickled: send what the other "
            "retriever was made from, and make this one there with RAGCacheRetriever.from_retriever"
        )

    def _shared_by_copies(self) -> Sequence[object]:
        return (self._retriever,)  # with its store


def _check_retriever(retriever: Any) -> None:
    if isinstance(retriever, EngineRetriever):
        raise InvalidArgument(
            f"this {type(retriever).__name__} tells an engine already: use it as it is"
        )
    if not isinstance(retriever, BaseRetriever):
        advice = (
            "give index.as_retriever()"
            if isinstance(retriever, BaseIndex)
            else ("give a retriever of LlamaIndex")
        )
        raise InvalidArgument(
            f"from_retriever takes a retriever, got {type(retriever).__name__}; {advice}"
        )
