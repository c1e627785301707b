"""Hears of the searches inside a retriever, such as those of a fusion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent

from ragcache_engine import Corpus, RetrievalInProgress
from ragcache_integrations.llamaindex.documents import document_of


@dataclass(slots=True)
class _Search:
    """A search that the engine was told of. running: how many retrievers run in it, itself among them."""

    retrieval: RetrievalInProgress
    corpus: Corpus | None
    running: int = 0


_current: ContextVar[_Search | None] = ContextVar("ragcache_search", default=None)


class InnerSearches(BaseEventHandler):
    """Tells the engine what each retriever inside another one finds, as candidates for the prompt."""

    @classmethod
    def class_name(cls) -> str:
        return "RAGCacheInnerSearches"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        search = _current.get()
        if search is None:
            return
        if isinstance(event, RetrievalStartEvent):
            search.running += 1
        elif isinstance(event, RetrievalEndEvent):
            search.running -= 1
            if search.running > 0 and event.nodes:
                search.retrieval.candidates(list(map(document_of, event.nodes)), search.corpus)


@contextmanager
def telling_inner_searches(retrieval: RetrievalInProgress, corpus: Corpus | None) -> Iterator[None]:
    """Tell of the searches inside the one that is run in this block.

    corpus: where the neighbours of nodes are looked up; None if nothing is borrowed behind them.
    """
    _listen()
    before = _current.set(_Search(retrieval, corpus))
    try:
        yield
    finally:
        _current.reset(before)


@cache
def _listen() -> None:
    """Have LlamaIndex tell of every retriever's run in this process, from now on."""
    get_dispatcher().add_event_handler(InnerSearches())
