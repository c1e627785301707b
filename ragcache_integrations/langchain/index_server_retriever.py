"""A retriever over a Faiss index that another process serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from pydantic import Field

import ragcache_engine
from ragcache_engine import Corpus, InvalidArgument
from ragcache_integrations.engine_reporting import (
    listener_if_speculating,
    stream_and_tell_engine,
    tell_engine,
)
from ragcache_integrations.index_server import corpus_of_server, find
from ragcache_integrations.langchain.engine_retriever import EngineRetriever, engine_document
from ragcache_integrations.langchain.stages import DocumentStage
from ragcache_integrations.langchain.store import computes_here
from ragcache_integrations.neighbour_choice import borrows_behind_neighbours
from ragcache_integrations.search_checks import check_top_k
from ragcache_integrations.stage_stream import iterate_in_thread
from ragcache_integrations.staging import OnStage

if TYPE_CHECKING:
    from ragcache_engine.index_server import IndexedDocument


class IndexServerRetriever(EngineRetriever):
    """Finds what an index server finds; RAGCacheRetriever.from_server makes it.

    The engine hears of each stage of the search, as the server sends it.

    server: the client of the server. k: the most documents a question gets. embeddings: the model that
    the index was built with; None: the server embeds questions.
    """

    server: Any = Field(exclude=True, repr=False)
    k: int
    embeddings: Any = Field(default=None, exclude=True, repr=False)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        k = self._top_k(**kwargs)
        with self._open_retrieval(query) as retrieval:
            corpus = self._corpus()
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document, corpus)
            documents = self._find(self._question(query), k, on_stage)
            return tell_engine(retrieval, documents, engine_document, corpus)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        k, apart = self._top_k(**kwargs), self.engine.threads.search
        with self._open_retrieval(query) as retrieval:
            corpus = await apart(self._corpus)
            on_stage = listener_if_speculating(self.engine, retrieval, engine_document, corpus)
            model = self.embeddings
            if computes_here(model):
                question = await apart(partial(self._question, query))
            else:
                question = await model.aembed_query(query)
            documents = await apart(partial(self._find, question, k, on_stage))
            tell = partial(tell_engine, retrieval, documents, engine_document, corpus)
            return tell() if corpus is None else await apart(tell)

    def stream_stages(self, query: str, **kwargs: Any) -> Generator[DocumentStage]:
        """Yield what `invoke` would return if the search ended now; at the end, what it returns.

        As RAGCacheRetriever.stream_stages. Closing the generator ends the search when the server has sent
        its next stage.
        """
        k = self._top_k(**kwargs)

        def search(on_stage: OnStage[list[Document]]) -> list[Document]:
            return self._find(self._question(query), k, on_stage)

        for stage in stream_and_tell_engine(
            self._open_retrieval(query), engine_document, search, self._corpus()
        ):
            yield DocumentStage(*stage)

    def astream_stages(self, query: str, **kwargs: Any) -> AsyncGenerator[DocumentStage]:
        """Yield what `stream_stages` yields. The event loop is not blocked."""
        return iterate_in_thread(self.stream_stages(query, **kwargs))

    def _question(self, query: str) -> str | Sequence[float]:
        return query if self.embeddings is None else self.embeddings.embed_query(query)

    def _find(
        self,
        question: str | Sequence[float],
        k: int,
        on_stage: OnStage[list[Document]] | None,
    ) -> list[Document]:
        return find(self.server, question, k, _document, on_stage)

    def _top_k(self, *, k: int | None = None, **others: Any) -> int:
        """Return how many documents a search may find. k: that of one call.

        Raises InvalidTopK, and InvalidArgument for options that only a local store has.
        """
        if others:
            raise InvalidArgument(
                f"an index server finds the nearest documents, and takes no {', '.join(others)}: search "
                f"a local store for that"
            )
        wanted = self.k if k is None else k
        check_top_k(wanted)
        return wanted

    def _all_documents(self) -> Sequence[Document]:
        return [_document(one) for one in self.server.documents()]

    def _corpus(self) -> Corpus | None:
        if not borrows_behind_neighbours(self.engine):
            return None
        return corpus_of_server(self.server, _engine_document)

    def _shared_by_copies(self) -> Sequence[object]:
        return (self.server, self.embeddings)


def _document(found: IndexedDocument, distance: float = 0.0) -> Document:
    return Document(id=found.id, page_content=found.text, metadata=dict(found.metadata))


def _engine_document(found: IndexedDocument) -> ragcache_engine.Document:
    return engine_document(_document(found))
