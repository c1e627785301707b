"""Checks the texts, metadatas and ids that a caller adds, before any text is embedded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document

from ragcache_engine import BadRequest
from ragcache_integrations.langchain.faiss_store.errors import UnequalLengths, VectorShapeError
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix


@dataclass(frozen=True, slots=True)
class Additions:
    """Documents to add, and the ids to return.

    ids: one for each text that was given. documents: one for each different id, with the last text
    given for it. positions: where the documents' texts are among those that were given.
    """

    ids: list[str]
    documents: list[Document]
    positions: list[int]


def prepare_additions(
    texts: Iterable[str],
    metadatas: Sequence[Mapping[str, Any] | None] | None,
    ids: Sequence[str | None] | None,
) -> Additions:
    """Pair texts with copies of their metadatas and with ids; make ids where there are none.

    Raises UnequalLengths; BadRequest for a text, metadata or id of a wrong type.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    check_same_length(texts=texts, metadatas=metadatas, ids=ids)
    named = [_read_id(name) for name in ids] if ids is not None else [_new_id() for _ in texts]
    last = {name: position for position, name in enumerate(named)}
    positions = sorted(last.values())
    documents = [
        Document(
            id=named[at],
            page_content=_read_text(texts[at], at),
            metadata=_read_metadata(metadatas[at] if metadatas is not None else None, at),
        )
        for at in positions
    ]
    return Additions(named, documents, positions)


def check_same_length(**lists: Sequence[Any] | None) -> None:
    """Raise UnequalLengths unless all lists that are given have the same length."""
    lengths = {name: len(given) for name, given in lists.items() if given is not None}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise UnequalLengths(f"got {counts}; give one of each for every text, or leave them out")


def as_matrix(vectors: Any, count: int) -> FloatMatrix:
    """Return an embedding model's vectors as one matrix of shape (count, dimensions).

    Raises VectorShapeError unless there are `count` vectors, all of one size, not empty, and finite.
    """
    try:
        matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise VectorShapeError(
            f"the vectors are not rows of numbers, all of one size ({error}); check the embedding "
            f"model"
        ) from error
    if matrix.ndim != 2 or len(matrix) != count or matrix.shape[1] == 0:
        raise VectorShapeError(
            f"{count} texts need {count} vectors of one size, got an array of shape "
            f"{matrix.shape}; check the embedding model"
        )
    if not np.isfinite(matrix).all():
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        raise VectorShapeError(
            f"vector {row} holds NaN, an infinity, or a number too large for 32 bits; check what "
            f"the embedding model makes of its text"
        )
    return matrix


def _new_id() -> str:
    return str(uuid4())


def _read_id(name: Any) -> str:
    if name is None:
        return _new_id()
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise BadRequest(f"ids are strings, got {name!r}; leave None where one is to be made")
    return str(name)


def _read_text(text: Any, position: int) -> str:
    if not isinstance(text, str):
        raise BadRequest(f"text {position} is a {type(text).__name__}; give a string")
    return text


def _read_metadata(metadata: Any, position: int) -> dict[str, Any]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise BadRequest(f"metadata {position} is a {type(metadata).__name__}; give a dict")
    return deepcopy(dict(metadata))
