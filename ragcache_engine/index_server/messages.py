"""What a client and an index server say to each other, as JSON. Both ends read and write it here.

A search is one POST. Its answer is a line of JSON for each stage, written when the stage is there. A
document's text stands in the first line that names it. An empty line is a sign of life, and a line with
"error" ends the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

SEARCH, NEIGHBOURS, DOCUMENTS, INDEX = "/search", "/neighbours", "/documents", "/index"
"""The paths of an index server."""

MOST_FOUND = 200
"""How many documents one search may find."""
MOST_NAMED, MOST_NEIGHBOURS = 64, 16
"""Of how many documents one call may ask the neighbours, and how many of each."""

MOST_STAGES = 64
LONGEST_QUESTION = 10_000
"""Of how many characters a question may be that the server embeds."""
MOST_DIMENSIONS = 65_536
LONGEST_NAME = 512

Name = Annotated[str, Field(max_length=LONGEST_NAME)]


class _Body(BaseModel):
    """A body that refuses what it does not know: a newer client must not be half understood."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchBody(_Body):
    """What to find. vector or text: the question; a text is embedded by the server, if it can.

    k: the most documents. stages: the most stages; 1: the answer alone.
    """

    vector: Annotated[list[float], Field(max_length=MOST_DIMENSIONS)] | None = None
    text: Annotated[str, Field(max_length=LONGEST_QUESTION)] | None = None
    k: Annotated[int, Field(ge=1, le=MOST_FOUND)]
    stages: Annotated[int, Field(ge=1, le=MOST_STAGES)] = 8


class NeighboursBody(_Body):
    """Of which documents to find the nearest others. k: the most for each."""

    ids: Annotated[list[Name], Field(max_length=MOST_NAMED)]
    k: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS)]


class IndexDescription(BaseModel):
    """What a server searches.

    version: changes with the documents and their vectors. vectors, dimensions: of the index. embeds:
    whether the server turns questions into vectors. knows_neighbours: whether the index gives back the
    vectors in it.
    """

    version: str
    vectors: int
    dimensions: int
    embeds: bool
    knows_neighbours: bool


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """A document of an index. metadata: what the index was built with; JSON can write it."""

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text, "metadata": dict(self.metadata)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> IndexedDocument:
        return cls(str(said["id"]), str(said["text"]), said.get("metadata") or {})


@dataclass(frozen=True, slots=True)
class FoundStage:
    """What a search has found so far.

    documents: nearest first. distances: of each, as Faiss gives them. fraction_done: the share of the
    search that is done, in (0, 1]. is_final: whether this is the answer; true for the last stage only.
    """

    documents: tuple[IndexedDocument, ...]
    distances: tuple[float, ...]
    fraction_done: float
    is_final: bool
