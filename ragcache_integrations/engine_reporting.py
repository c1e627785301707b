"""Tells the engine about a retriever's search: its provisional results, and its answer.

In all functions here, as_document turns an item that the framework found into the engine's Document.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from typing import TypeVar

from ragcache_engine import Corpus, Document, RAGCacheEngine, RetrievalInProgress
from ragcache_integrations.stage_stream import stream_search
from ragcache_integrations.staging import OnStage

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


def listener_if_speculating(
    engine: RAGCacheEngine,
    retrieval: RetrievalInProgress,
    as_document: Callable[[Item], Document],
    corpus: Corpus | None = None,
) -> OnStage[list[Item]] | None:
    """Return a `stage_listener`, or None if the engine's `speculation` is "off".

    Without a listener, run the search in one go.
    """
    if engine.config.speculation == "off":
        return None
    return stage_listener(retrieval, as_document, corpus)


def stage_listener(
    retrieval: RetrievalInProgress,
    as_document: Callable[[Item], Document],
    corpus: Corpus | None = None,
) -> OnStage[list[Item]]:
    """Return a listener that tells the engine of each stage of a search.

    It skips a stage that it cannot translate, so that no search fails because of it.
    corpus: as in `tell_engine`.
    """
    if corpus is not None:
        retrieval.look_up_neighbours((), corpus, only_here=True)

    def tell(found: list[Item], fraction_done: float) -> None:
        try:
            documents = [as_document(item) for item in found]
            documents = [documents[place] for place in retrieval.order(documents)]
        except Exception as error:
            logger.debug("a provisional result was skipped: %r", error)
        else:
            retrieval.provisional(documents)

    return tell


def tell_engine(
    retrieval: RetrievalInProgress,
    found: list[Item],
    as_document: Callable[[Item], Document],
    corpus: Corpus | None = None,
) -> list[Item]:
    """Tell the engine what the search found. Return it in the order that `document_order` asks for.

    corpus: where to look up the neighbours of documents, if the engine borrows from behind them.
    """
    documents = [as_document(item) for item in found]
    if corpus is not None:
        retrieval.look_up_neighbours(documents, corpus, only_here=True)
    places = retrieval.order(documents)
    retrieval.found([documents[place] for place in places])
    return [found[place] for place in places]


def stream_and_tell_engine(
    opening: AbstractContextManager[RetrievalInProgress],
    as_document: Callable[[Item], Document],
    search: Callable[[OnStage[list[Item]]], list[Item]],
    corpus: Corpus | None = None,
) -> Generator[tuple[list[Item], float, bool]]:
    """Yield the stages of a search as `stream_search` does, and tell the engine of each of them.

    opening: what `RAGCacheEngine.retrieval` returned, not entered yet. corpus: as in `tell_engine`.
    """
    with opening as retrieval:
        tell = stage_listener(retrieval, as_document, corpus)

        def search_and_tell(show: OnStage[list[Item]]) -> list[Item]:
            def tell_and_show(found: list[Item], fraction_done: float) -> None:
                tell(found, fraction_done)
                show(found, fraction_done)

            return search(tell_and_show)

        with closing(stream_search(search_and_tell)) as stages:
            for stage in stages:
                answer, _, is_final = stage
                if not is_final:
                    yield stage
        answer = tell_engine(retrieval, answer, as_document, corpus)
    # Outside the block, so that a reader who stops after the answer has a complete search.
    yield answer, 1.0, True
