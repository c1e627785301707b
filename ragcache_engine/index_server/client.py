"""The client of an index server: its stages, as they come."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from ragcache_engine.backends.server.connection import Connection
from ragcache_engine.errors import (
    ModelNotFound,
    QueryShapeError,
    RAGCacheError,
    ServerLost,
    ServerUnreachable,
)
from ragcache_engine.index_server.messages import (
    DOCUMENTS,
    INDEX,
    LONGEST_NAME,
    MOST_NAMED,
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
    Nothing is sent before the first search. Any threads may use it at the same time.
    Raises InvalidArgument for what is no URL.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url
        self._connection = Connection(url, api_key)
        self._description: IndexDescription | None = None

    def __repr__(self) -> str:
        return f"IndexServer({self.url!r})"

    def close(self) -> None:
        """Close the connections to the server. Searches that run fail."""
        self._connection.end()

    def describe(self) -> IndexDescription:
        """Return what the server searched when it was last asked. Raises as `stages` does."""
        description = self._description
        if description is None:
            with self._reading():
                (said,) = self._connection.lines("GET", INDEX)
                description = IndexDescription.model_validate(said)
            self._description = description
        return description

    def stages(
        self, question: str | Sequence[float], k: int, count: int = 8
    ) -> Generator[FoundStage, None, None]:
        """Yield what the search has found so far, each time it has found more; the answer last.

        question: its vector, or a text for a server that embeds. k: the most documents, up to 200. count:
        the most stages, up to 64. Closing the generator ends the search, after the part that runs.
        Raises, with the first stage: what the server refuses (QueryShapeError, InvalidArgument,
        KeyRefused, RequestTooLarge, ServerBusy) and ServerUnreachable; with a later one: ServerLost.
        """
        asked: dict[str, Any] = {"k": int(k), "stages": int(count)}
        if isinstance(question, str):
            asked["text"] = question
        else:
            asked["vector"] = _numbers(question)
        documents: dict[int, IndexedDocument] = {}
        for said in self._lines("POST", SEARCH, asked):
            with self._reading():
                documents.update(_read_documents(said))
                stage = FoundStage(
                    tuple(documents[row] for row in said["rows"]),
                    tuple(map(float, said["distances"])),
                    float(said["fraction_done"]),
                    bool(said["final"]),
                )
                self._see_version(said["version"])
            yield stage
            if stage.is_final:
                return
        raise self._broken()

    def neighbours(self, ids: Sequence[str], k: int) -> list[list[IndexedDocument]]:
        """Return for each document the k nearest with another text, nearest first; none for unknown ids.

        Raises UnknownDocument if its index keeps no vectors that could be looked up, and as `stages`.
        """
        found: list[list[IndexedDocument]] = []
        for at in range(0, len(ids), MOST_NAMED):
            some = ids[at : at + MOST_NAMED]
            asked = [name if len(name) <= LONGEST_NAME else "" for name in some]
            for said in self._lines("POST", NEIGHBOURS, {"ids": asked, "k": int(k)}):
                with self._reading():
                    documents = _read_documents(said)
                    found += [[documents[row] for row in each] for each in said["neighbours"]]
                    self._see_version(said["version"])
        return found

    def documents(self) -> Generator[IndexedDocument, None, None]:
        """Yield every document of the index. Raises as `stages` does."""
        for said in self._lines("GET", DOCUMENTS):
            with self._reading():
                if said.get("final"):
                    self._see_version(said["version"])
                    return
                document = IndexedDocument.from_json(said)
            yield document
        raise self._broken()

    def _lines(self, method: str, path: str, body: Any = None) -> Iterator[dict[str, Any]]:
        with self._reading(), closing(self._connection.lines(method, path, body)) as lines:
            yield from lines

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Name what another kind of server answers."""
        try:
            yield
        # ModelNotFound is what any server's HTTP 404 stands for.
        except (KeyError, TypeError, ValueError, AttributeError, ModelNotFound) as error:
            if isinstance(error, RAGCacheError) and not isinstance(error, ModelNotFound):
                raise
            raise ServerUnreachable(
                f"{self.url} is no index server of this version: is the address that of `ragcache index "
                f"serve`?"
            ) from error

    def _see_version(self, version: str) -> None:
        """Describe the index anew if the server has another one since."""
        if self._description is not None and self._description.version != version:
            self._description = None

    def _broken(self) -> ServerLost:
        return ServerLost(f"the answer of {self.url} ended before it was complete: ask again")


def _read_documents(said: Mapping[str, Any]) -> dict[int, IndexedDocument]:
    return {int(row): IndexedDocument.from_json(one) for row, one in said["documents"].items()}


def _numbers(vector: Sequence[float]) -> list[float]:
    """Return a vector as JSON can write it. Raises QueryShapeError."""
    try:
        numbers = [float(number) for number in vector]
    except (TypeError, ValueError, OverflowError) as error:
        raise QueryShapeError(f"the question's vector is no list of numbers: {error}") from error
    if not all(map(math.isfinite, numbers)):
        raise QueryShapeError(
            "the question's vector holds NaN or infinity, which is near to nothing; look at the "
            "embedding model's output, or at the division by a length of zero"
        )
    return numbers
