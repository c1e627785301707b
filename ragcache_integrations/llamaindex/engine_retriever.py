"""What the retrievers that tell the engine of their nodes have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, QueryType

from ragcache_engine import (
    Corpus,
    RAGCacheEngine,
    RetrievalInProgress,
    Synced,
    SyncRecord,
    Warmed,
)
from ragcache_integrations.llamaindex.documents import engine_document
from ragcache_integrations.llamaindex.llm import RAGCacheLLM
from ragcache_integrations.llamaindex.template import PromptTemplateLike, as_template
from ragcache_integrations.warming import StoreWarming


class EngineRetriever(BaseRetriever):
    """A retriever that tells an engine of each search, and prefills nodes of its store.

    A RAGCacheRetriever is one, and so is what its `from_retriever` returns.

    chain: a key that distinguishes this retriever's prompts from those of others.
    """

    _engine: RAGCacheEngine
    _template: Any
    _llm: RAGCacheLLM | None
    _sync_record: SyncRecord
    chain: Hashable

    def _set_engine(
        self,
        engine: RAGCacheEngine,
        template: PromptTemplateLike | None,
        llm: RAGCacheLLM | None,
        chain: Hashable,
    ) -> None:
        """Say whom to tell. Arguments: see RAGCacheRetriever.from_index."""
        self._engine = engine
        self._template = None if template is None else as_template(template, llm)
        self._llm = llm
        self.chain = object() if chain is None else chain
        self._sync_record = SyncRecord()

    @property
    def engine(self) -> RAGCacheEngine:
        """The engine that hears of the searches."""
        return self._engine

    def warm(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill nodes before anybody asks about them, such as an index that was just built.

            retriever = RAGCacheRetriever.from_index(index, engine=engine, template=text_qa_template)
            retriever.warm(progress=True)

        nodes: some of the index's, as the retriever finds them; None: all of them. Of the retrievers that
          `from_retriever` makes, give the nodes: many stores do not tell all that they have.
        only_missing: leave those alone that some tier holds, as after a restart with a disk; otherwise
          they are loaded into memory.
        progress: show a bar on standard error.
        Each node is prefilled as the first one of a prompt; with reuse="anywhere" also as prompts borrow
        it. A question that is asked meanwhile does not wait for the rest. Warming all nodes pays as far
        as the tiers have room for them.
        Raises UnknownTemplate, before any work, if the retriever has no template and the last prompts
        of its query engine do not tell how the next one begins; UnknownDocument if the docstore lacks a
        node; InvalidArgument for None where nodes are needed; what RAGCacheEngine.warm raises.
        """
        return self._warming(nodes).run(only_missing=only_missing, progress=progress)

    async def awarm(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill nodes: `warm` for coroutines. Cancelling the task ends the prefills."""
        # A store may be far away.
        warming = await self._engine.threads.search(partial(self._warming, nodes))
        return await warming.arun(only_missing=only_missing, progress=progress)

    def sync(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        record: SyncRecord | None = None,
        prepare: bool = True,
        progress: bool = False,
    ) -> Synced:
        """Make the cache follow the store: forget nodes that changed or vanished, prefill new ones.

            index.refresh_ref_docs(reader.load_data())
            retriever.sync()

        nodes: all that the store has, as the retriever finds them; None: it is asked, as by `warm`.
        record: what the sync before had; give one with a file where later processes are to know it. None:
          the one that this retriever and its copies have.
        prepare: prefill what is new or changed, and keep again what was kept of it; else only forget.
        progress: show a bar on standard error.
        Coroutines call it in a thread. Raises what `warm` raises, before any work; what
        RAGCacheEngine.sync raises.
        """
        warming = self._warming(nodes)
        return warming.sync(record or self._sync_record, prepare=prepare, progress=progress)

    def _warming(self, nodes: Sequence[BaseNode] | None) -> StoreWarming:
        if nodes is None:
            nodes = self._all_nodes()
        return StoreWarming(
            engine=self._engine,
            documents=list(map(engine_document, nodes)),
            neighbours=self._corpus(),
            chain=self.chain,
            template=self._template,
            tenant=self._llm.tenant if self._llm else None,
        )

    def _all_nodes(self) -> Sequence[BaseNode]:
        """Return all nodes of the store. Raises InvalidArgument if the store does not tell them."""
        raise NotImplementedError

    def _corpus(self) -> Corpus | None:
        """Return where to look up neighbours; None if nothing is borrowed, or nobody can be asked."""
        raise NotImplementedError

    def _open_retrieval(self, query: QueryType) -> AbstractContextManager[RetrievalInProgress]:
        llm = self._llm
        return self._engine.retrieval(
            query if isinstance(query, str) else query.query_str,
            chain=self.chain,
            template=self._template,
            options=llm.sampling_options() if llm else None,
            tenant=llm.tenant if llm else None,
        )

    def _shared_by_copies(self) -> Sequence[object]:
        """Return what a deep copy shares with this retriever, beside the engine and the chain."""
        return ()

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # The copy shares the engine, which cannot be copied, and the chain, because a copy writes the
        # same prompts.
        for shared in (self._engine, self.chain, self._sync_record, *self._shared_by_copies()):
            memo[id(shared)] = shared
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(deepcopy(self.__dict__, memo))
        return twin
