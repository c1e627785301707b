"""The client of an index server: its stages, as they come."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from pydantic import ValidationError

from ragcache_engine.backends.server.connection import Connection
from ragcache_engine.errors import QueryShapeError, ServerLost, ServerUnreachable
from ragcache_engine.index_server.messages import (
    DOCUMENTS,
    INDEX,
    NEIGHBOURS,
    SEARCH,
    FoundStage,
    IndexDescription,
    IndexedDocument,
)


class IndexServer:
    """A Faiss index that `ragcache index serve` searches, in another process or on another host.

        server = IndexServer("http://host:8100", api_key="...")
        for stage in server.stages("Why is the sky blue?", k=4):
            print(stage.fraction_done, [document.id for document in stage.documents])

    url: where the server listens. api_key: one of the keys in its file; None: it asks for none.
    has_warned: whether its user was told that the index knows no neighbours.
    Nothing is sent before the first search. Any threads may use it at the same time.
    Raises InvalidArgument for what is no URL; BackendUnavailable without the extra `client`.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self._connection = Connection(url, api_key)
        self.has_warned = False
        self._description: IndexDescription | None = None

    def __repr__(self) -> str:
        return f"IndexServer({self.url!r})"

    def describe(self) -> IndexDescription:
        """Return what the server searched when it was last asked. Raises as `stages` does."""
        if self._description is None:
            said = self._connection.call("GET", INDEX)
            try:
                self._description = IndexDescription.model_validate(said)
            except ValidationError as error:
                raise ServerUnreachable(
                    f"{self.url} is no index server: is the address that of `ragcache index serve`?"
                ) from error
        return self._description

    def stages(
        self, question: str | Sequence[float], k: int, count: int = 8
    ) -> Generator[FoundStage, None, None]:
        """Yield what the search has found so far, each time it has found more; the answer last.

        question: its vector, or a text for a server that embeds. k: the most documents. count: the most
        stages. Closing the generator ends the search. Raises, with the first stage: what the server
        refuses (QueryShapeError, InvalidArgument, KeyRefused, RequestTooLarge, ServerBusy)
        and ServerUnreachable; with a later one: ServerLost.
        """
        asked: dict[str, Any] = {"k": k, "stages": count}
        if isinstance(question, str):
            asked["text"] = question
        else:
            asked["vector"] = _numbers(question)
        documents: dict[int, IndexedDocument] = {}
        lines = self._connection.lines("POST", SEARCH, asked)
        with closing(lines):
            for said in lines:
                stage = self._read_stage(said, documents)
                yield stage
                if stage.is_final:
                    return
        raise self._broken()

    def _read_stage(
        self, said: Mapping[str, Any], documents: dict[int, IndexedDocument]
    ) -> FoundStage:
        """Read a line. documents: those of the lines before; grows."""
        try:
            for row, document in said["documents"].items():
                documents[int(row)] = IndexedDocument.from_json(document)
            self._see_version(said["version"])
            return FoundStage(
                tuple(documents[row] for row in said["rows"]),
                tuple(map(float, said["distances"])),
                float(said["fraction_done"]),
                bool(said["final"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ServerLost(f"{self.url} sent what is no stage of a search") from error

    def neighbours(self, ids: Sequence[str], k: int) -> list[list[IndexedDocument]]:
        """Return for each document the k nearest others, nearest first; none for one it has not.

        Raises UnknownDocument if its index keeps no vectors that could be looked up, and as `stages`.
        """
        said = self._connection.call("POST", NEIGHBOURS, {"ids": list(ids), "k": k})
        self._see_version(said["version"])
        return [[IndexedDocument.from_json(one) for one in each] for each in said["neighbours"]]

    def documents(self) -> Generator[IndexedDocument, None, None]:
        """Yield every document of the index. Raises as `stages` does."""
        for said in self._connection.lines("GET", DOCUMENTS):
            if said.get("final"):
                return
            yield IndexedDocument.from_json(said)
        raise self._broken()

    def _see_version(self, version: str) -> None:
        """Describe the index anew if the server has another one since."""
        if self._description is not None and self._description.version != version:
            self._description = None

    def _broken(self) -> ServerLost:
        return ServerLost(f"the answer of {self.url} ended before it was complete: ask again")


def _numbers(vector: Sequence[float]) -> list[float]:
    """Return a vector as JSON can write it. Raises QueryShapeError."""
    try:
        numbers = [float(number) for number in vector]
    except (TypeError, ValueError) as error:
        raise QueryShapeError(f"the question's vector is no list of numbers: {error}") from error
    if not all(map(math.isfinite, numbers)):
        raise QueryShapeError(
            "the question's vector holds NaN or infinity, which is near to nothing; look at the "
            "embedding model's output, or at the division by a length of zero"
        )
    return numbers
