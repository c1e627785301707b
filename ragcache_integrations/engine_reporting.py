"""What a retriever tells the engine of its search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Protocol, TypeVar

from ragcache_engine import Document, RAGCacheEngine, RetrievalInProgress, SamplingOptions
from ragcache_integrations.stage_stream import stream_search
from ragcache_integrations.staging import OnStage

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class AsksEngine(Protocol):
    """An LLM on an engine: its tenant, and how it draws answers."""

    tenant: str | None

    def sampling_options(self) -> SamplingOptions: ...


def open_retrieval(
    engine: RAGCacheEngine,
    question: str,
    *,
    chain: Hashable,
    template: Callable[[str, Sequence[Document]], str] | None,
    llm: AsksEngine | None,
) -> AbstractContextManager[RetrievalInProgress]:
    """Tell the engine that a search for this question begins; it ends with the block.

    chain: what tells the retriever's prompts from those of others.
    template, llm: what the engine may begin even the first prompt with; see the retrievers.
    """
    return engine.retrieval(
        question,
        chain=chain,
        template=template,
        options=llm.sampling_options() if llm else None,
        tenant=llm.tenant if llm else None,
    )


def listener_if_speculating(
    engine: RAGCacheEngine, retrieval: RetrievalInProgress, as_document: Callable[[Item], Document]
) -> OnStage[list[Item]] | None:
    """`stage_listener`; None if the engine's `speculation` is "off", so that nobody listens."""
    return None if engine.config.speculation == "off" else stage_listener(retrieval, as_document)


def stage_listener(
    retrieval: RetrievalInProgress, as_document: Callable[[Item], Document]
) -> OnStage[list[Item]]:
    """Tells the engine, and leaves out what cannot be told: no search fails for that."""

    def tell(found: list[Item], fraction_done: float) -> None:
        try:
            documents = [as_document(item) for item in found]
            documents = [documents[place] for place in retrieval.order(documents)]
        except Exception as error:
            logger.debug("a provisional result was left out: %r", error)
        else:
            retrieval.provisional(documents)

    return tell


def tell_engine(
    retrieval: RetrievalInProgress, found: list[Item], as_document: Callable[[Item], Document]
) -> list[Item]:
    """What a search found, in the order that `document_order` asks for; the engine is told."""
    documents = [as_document(item) for item in found]
    places = retrieval.order(documents)
    retrieval.found([documents[place] for place in places])
    return [found[place] for place in places]


def stream_and_tell_engine(
    retrieving: AbstractContextManager[RetrievalInProgress],
    as_document: Callable[[Item], Document],
    search: Callable[[OnStage[list[Item]]], list[Item]],
) -> Generator[tuple[list[Item], float, bool]]:
    """`streamed`, and the engine is told of each stage as well."""
    with retrieving as retrieval:
        tell = stage_listener(retrieval, as_document)

        def told(show: OnStage[list[Item]]) -> list[Item]:
            def both(found: list[Item], fraction_done: float) -> None:
                tell(found, fraction_done)
                show(found, fraction_done)

            return search(both)

        with closing(stream_search(told)) as stages:
            for stage in stages:
                answer, _, is_final = stage
                if not is_final:
                    yield stage
        answer = tell_engine(retrieval, answer, as_document)
    # Outside: whoever has seen the answer may close us, and has had a whole search all the same.
    yield answer, 1.0, True
