"""What the retrievers that tell the engine of their documents have in common."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, field_validator

import ragcache_engine
from ragcache_engine import EngineNeeded, InvalidArgument, RAGCacheEngine, RetrievalInProgress
from ragcache_integrations.engine_field import check_same_engine
from ragcache_integrations.langchain.chat import ChatRAGCache
from ragcache_integrations.langchain.llm import RAGCacheLLM
from ragcache_integrations.langchain.template import as_template


class EngineRetriever(BaseRetriever):
    """A retriever with an engine that it tells of each search. Its fields: see RAGCacheRetriever."""

    engine: RAGCacheEngine = Field(exclude=True, repr=False)
    template: Any = Field(default=None, exclude=True, repr=False)
    document_separator: str = "\n\n"
    llm: Any = Field(default=None, exclude=True, repr=False)
    # A field, because configurable fields make a new retriever from the fields at each call.
    chain: Hashable = Field(default_factory=object, exclude=True, repr=False)

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: Any) -> Any:
        if template is not None:
            as_template(template, "")
        return template

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # The copy searches the same store, and its prompts are those of the same chain.
        memo = {} if memo is None else memo
        memo |= {id(shared): shared for shared in (self.chain, *self._shared_by_copies())}
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        raise EngineNeeded(
            f"an engine lives in one process, so {type(self).__name__} cannot be pickled: send what its "
            f"store was loaded from, and make another there, with RAGCacheRetriever.from_vectorstore or "
            f"from_retriever"
        )

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
    name = getattr(document, "id", None) or sha256(text.encode()).hexdigest()
    return ragcache_engine.Document(id=name, text=text)
