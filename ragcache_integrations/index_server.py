"""What the retrievers of both frameworks need of an index server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from ragcache_engine import BackendUnavailable, Corpus, Document, InvalidArgument
from ragcache_integrations.neighbour_choice import LOOKED_AT, choose_neighbours, number_of
from ragcache_integrations.staging import OnStage

if TYPE_CHECKING:
    from ragcache_engine.index_server import IndexedDocument, IndexServer

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

_warned: WeakSet[IndexServer] = WeakSet()
"""The servers whose users were told that the index knows no neighbours."""


def as_server(server: Any, api_key: str | None) -> IndexServer:
    """Return the server, or a client of the one at this URL.

    Raises BackendUnavailable without the extra `client`; InvalidArgument for what is neither.
    """
    try:
        from ragcache_engine.index_server import IndexServer
    except ImportError as error:
        raise BackendUnavailable(
            "an index server is reached with httpx2: pip install 'ragcache-integrations[client]'"
        ) from error
    if isinstance(server, IndexServer):
        if api_key is not None:
            raise InvalidArgument("give api_key= to the IndexServer, or give its URL")
        return server
    if not isinstance(server, str):
        raise InvalidArgument(
            f"from_server takes the URL of `ragcache index serve`, got {type(server).__name__}"
        )
    return IndexServer(server, api_key)


def find(
    server: IndexServer,
    question: str | Sequence[float],
    k: int,
    as_item: Callable[[IndexedDocument, float], Item],
    on_stage: OnStage[list[Item]] | None,
) -> list[Item]:
    """Return what the server finds, and show each stage before. on_stage: None: search in one go.

    as_item: makes the framework's own of a document and its distance. Raises as IndexServer.stages.
    """
    found: list[Item] = []
    drawn = server.stages(question, k, count=1) if on_stage is None else server.stages(question, k)
    with closing(drawn):  # an error of the listener ends the search
        for stage in drawn:
            found = list(map(as_item, stage.documents, stage.distances))
            if not stage.is_final and on_stage is not None:
                on_stage(found, stage.fraction_done)
    return found


def corpus_of_server(
    server: IndexServer, as_document: Callable[[IndexedDocument], Document]
) -> Corpus | None:
    """Return the server's index as a corpus; None if it cannot be asked for neighbours.

    as_document: makes the engine's. Raises as IndexServer.describe.
    """
    description = server.describe()
    if not description.knows_neighbours:
        if server not in _warned:
            _warned.add(server)
            logger.warning(
                "the index of %s gives back no vectors, so that its documents are borrowed as they "
                "are alone, and answers are less like the exact ones: build it with an IndexIDMap2 "
                "instead of an IndexIDMap, and without FastScan",
                server.url,
            )
        return None

    def look_up(documents: Sequence[Document]) -> list[list[Document]]:
        nearest = server.neighbours([document.id for document in documents], LOOKED_AT - 1)
        return [
            choose_neighbours(document, map(as_document, found))
            for document, found in zip(documents, nearest, strict=True)
        ]

    return Corpus(description.version, look_up, name=number_of(server))
