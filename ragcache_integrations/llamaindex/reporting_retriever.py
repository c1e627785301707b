"""A retriever of any kind, which also tells the engine what it finds."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType

from ragcache_engine import (
    Corpus,
    EngineNeeded,
    InvalidArgument,
    RAGCacheEngine,
    RetrievalInProgress,
    Warmed,
)
from ragcache_integrations.engine_field import check_engine
from ragcache_integrations.engine_reporting import tell_engine
from ragcache_integrations.llamaindex.documents import check_llm, document_of, engine_document
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.neighbours import corpus_of_other
from ragcache_integrations.llamaindex.template import PromptTemplateLike, as_template
from ragcache_integrations.neighbour_choice import borrows_behind_neighbours, warn_of_no_neighbours
from ragcache_integrations.warming import StoreWarming


class ReportingRetriever(BaseRetriever):
    """Finds what another retriever finds; RAGCacheRetriever.from_retriever makes it.

    The engine recognises the nodes in the prompt that a response synthesizer then writes, and remembers
    what the last one looked like. Callbacks and events see the other retriever's run. Its errors come out
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
        self._engine = engine
        self._template = None if template is None else as_template(template, llm)
        self._llm = llm
        self.chain = object() if chain is None else chain
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

    @property
    def engine(self) -> RAGCacheEngine:
        """The engine that hears of the searches."""
        return self._engine

    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        with self._open_retrieval(str_or_query_bundle) as retrieval:
            nodes = self._retriever.retrieve(str_or_query_bundle)
            return tell_engine(retrieval, nodes, document_of, self._corpus())

    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        with self._open_retrieval(str_or_query_bundle) as retrieval:
            nodes = await self._retriever.aretrieve(str_or_query_bundle)
            corpus = self._corpus()
            if corpus is None:
                return tell_engine(retrieval, nodes, document_of)
            # Looking up neighbours embeds the nodes, which may take long.
            tell = partial(tell_engine, retrieval, nodes, document_of, corpus)
            return await self._engine.threads.search(tell)

    def warm(
        self, nodes: Sequence[BaseNode], *, only_missing: bool = False, progress: bool = False
    ) -> Warmed:
        """Prefill nodes of the other retriever's store; see RAGCacheRetriever.warm.

        nodes: as the retriever finds them. Many stores do not tell all that they have, so give them.
        """
        return self._warming(nodes).run(only_missing=only_missing, progress=progress)

    async def awarm(
        self, nodes: Sequence[BaseNode], *, only_missing: bool = False, progress: bool = False
    ) -> Warmed:
        """Prefill nodes: `warm` for coroutines. Cancelling the task ends the prefills."""
        return await self._warming(nodes).arun(only_missing=only_missing, progress=progress)

    def _warming(self, nodes: Sequence[BaseNode]) -> StoreWarming:
        return StoreWarming(
            engine=self._engine,
            documents=list(map(engine_document, nodes)),
            neighbours=self._corpus(),
            chain=self.chain,
            template=self._template,
            tenant=self._llm.tenant if self._llm else None,
        )

    def _corpus(self) -> Corpus | None:
        """Return where to look up neighbours; None if nothing is borrowed, or nobody can be asked."""
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The copy shares the engine, which cannot be copied, the other retriever with its store, and the
        # chain, because a copy writes the same prompts.
        for shared in (self._engine, self._retriever, self.chain):
            memo[id(shared)] = shared
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(deepcopy(self.__dict__, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        raise EngineNeeded(
            "an engine lives in one process, so this retriever cannot be pickled: send what the other "
            "retriever was made from, and make this one there with RAGCacheRetriever.from_retriever"
        )

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _open_retrieval(self, query: QueryType) -> AbstractContextManager[RetrievalInProgress]:
        llm = self._llm
        return self._engine.retrieval(
            query if isinstance(query, str) else query.query_str,
            chain=self.chain,
            template=self._template,
            options=llm.sampling_options() if llm else None,
            tenant=llm.tenant if llm else None,
        )


def _check_retriever(retriever: Any) -> None:
    if isinstance(retriever, ReportingRetriever) or hasattr(retriever, "stream_stages"):
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
