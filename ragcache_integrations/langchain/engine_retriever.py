"""What the retrievers that tell the engine of their documents have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr, field_validator

import ragcache_engine
from ragcache_engine import (
    Corpus,
    EngineNeeded,
    InvalidArgument,
    RAGCacheEngine,
    RetrievalInProgress,
    Synced,
    SyncRecord,
    Warmed,
)
from ragcache_integrations.document_labels import label_of
from ragcache_integrations.engine_field import check_same_engine
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.template import as_template
from ragcache_integrations.warming import StoreWarming


class EngineRetriever(BaseRetriever):
    """A retriever that tells an engine of each search, and prefills documents of its store.

    A RAGCacheRetriever is one, and so is what its `from_retriever` returns. Its fields: see there.
    """

    engine: RAGCacheEngine = Field(exclude=True, repr=False)
    template: Any = Field(default=None, exclude=True, repr=False)
    document_separator: str = "\n\n"
    llm: Any = Field(default=None, exclude=True, repr=False)
    # A field, because configurable fields make a new retriever from the fields at each call.
    chain: Hashable = Field(default_factory=object, exclude=True, repr=False)
    _sync_record: SyncRecord = PrivateAttr(default_factory=SyncRecord)

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: Any) -> Any:
        if template is not None:
            as_template(template, "")
        return template

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # The copy searches the same store, and its prompts are those of the same chain.
        memo = {} if memo is None else memo
        memo |= {
            id(shared): shared
            for shared in (self.chain, self._sync_record, *self._shared_by_copies())
        }
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        raise EngineNeeded(
            f"an engine lives in one process, so {type(self).__name__} cannot be pickled: send what its "
            f"store was loaded from, and make another there, with RAGCacheRetriever.from_vectorstore, "
            f"from_retriever or from_server"
        )

    def warm(
        self,
        documents: Sequence[Document] | None = None,
        *,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill documents before anybody asks about them, such as a store that was just filled.

            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from ragcache_engine import EngineConfig
            >>> from ragcache_integrations.langchain import FaissVectorStore, RAGCacheRetriever
            >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
            >>> store = FaissVectorStore.from_texts(
            ...     ["Ice floats on water.", "Tides follow the moon."], DeterministicFakeEmbedding(size=8)
            ... )
            >>> retriever = RAGCacheRetriever.from_vectorstore(
            ...     store, engine=engine, template="{context}\\n\\n{question}"
            ... )
            >>> retriever.warm().sets
            2
            >>> engine.close()

        documents: some of the store's, as the retriever finds them; None: all of them. Of the retrievers
          that `from_retriever` makes, give the documents: many stores do not tell all that they have.
        only_missing: leave those alone that some tier holds, as after a restart with a disk; otherwise
          they are loaded into memory.
        progress: show a bar on standard error.
        Each document is prefilled as the first one of a prompt; with reuse="anywhere" also as prompts
        borrow it. A question that is asked meanwhile does not wait for the rest. Warming all documents
        pays as far as the tiers have room for them.
        Raises UnknownTemplate, before any work, if the retriever has no template and the last prompts
        of its chain do not tell how the next one begins; InvalidArgument for None where documents are
        needed; what RAGCacheEngine.warm raises.
        """
        return self._warming(documents).run(only_missing=only_missing, progress=progress)

    async def awarm(
        self,
        documents: Sequence[Document] | None = None,
        *,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill documents: `warm` for coroutines. Cancelling the task ends the prefills."""
        # A store may be far away.
        warming = await self.engine.threads.search(partial(self._warming, documents))
        return await warming.arun(only_missing=only_missing, progress=progress)

    def sync(
        self,
        documents: Sequence[Document] | None = None,
        *,
        record: SyncRecord | None = None,
        prepare: bool = True,
        progress: bool = False,
    ) -> Synced:
        """Make the cache follow the store: forget documents that changed or vanished, prefill new ones.

            index(loader, record_manager, store, cleanup="full", source_id_key="source")
            retriever.sync()

        documents: all that the store has, as the retriever finds them; None: it is asked, as by `warm`.
        record: what the sync before had; give one with a file where later processes are to know it. None:
          the one that this retriever and its copies have.
        prepare: prefill what is new or changed, and keep again what was kept of it; else only forget.
        progress: show a bar on standard error.
        Coroutines call it in a thread. Raises what `warm` raises, before any work; what
        RAGCacheEngine.sync raises.
        """
        warming = self._warming(documents)
        return warming.sync(record or self._sync_record, prepare=prepare, progress=progress)

    def _warming(self, documents: Sequence[Document] | None) -> StoreWarming:
        if documents is None:
            documents = self._all_documents()
        return StoreWarming(
            engine=self.engine,
            documents=list(map(engine_document, documents)),
            neighbours=self._corpus(),
            chain=self.chain,
            template=self._template_as_written(),
            tenant=self.llm.tenant if self.llm else None,
        )

    def _all_documents(self) -> Sequence[Document]:
        """Return all documents of the store. Raises InvalidArgument if the store does not tell them."""
        raise NotImplementedError

    def _corpus(self) -> Corpus | None:
        """Return where to look up neighbours of the store's documents; None if nothing is borrowed."""
        raise NotImplementedError

    def _shared_by_copies(self) -> Sequence[object]:
        """Return what a deep copy shares with this retriever."""
        raise NotImplementedError

    def _open_retrieval(self, query: str) -> AbstractContextManager[RetrievalInProgress]:
        llm = self.llm
        return self.engine.retrieval(
            query,
            chain=self.chain,
            template=self._template_as_written(),
            options=llm.sampling_options() if llm else None,
            tenant=llm.tenant if llm else None,
        )

    def _template_as_written(self) -> Any:
        """Return the chain's template as the engine takes it; None if it was not given."""
        if self.template is None:
            return None
        return as_template(self.template, self.document_separator, self.llm)


def check_llm(llm: Any, engine: RAGCacheEngine) -> None:
    """Raise InvalidArgument unless this is None or a model of ours on this engine."""
    if llm is None:
        return
    if not isinstance(llm, RAGCacheLLM | ChatRAGCache):
        raise InvalidArgument(
            f"llm= takes a RAGCacheLLM or a ChatRAGCache, got {type(llm).__name__}; give the model "
            f"itself, not what bind() or with_config() made of it, and leave it out for other models"
        )
    check_same_engine(engine, llm)


def engine_document(document: Document) -> ragcache_engine.Document:
    """Return LangChain's document as the engine's Document.

    Its text is the text that chains write into the prompt.
    """
    text = document.page_content
    # A store that an early LangChain pickled holds documents without the attribute `id`.
    name = getattr(document, "id", None) or None
    return ragcache_engine.Document(
        id=name or sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        text=text,
        label=label_of(name, document.metadata),
    )
