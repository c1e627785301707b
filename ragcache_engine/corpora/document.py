"""A registered document, and what becomes of it when it is registered."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Any

from ragcache_engine.checks import shown
from ragcache_engine.errors import InvalidArgument

_CORPUS_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""Without slash and colon: they would make one document's name in the knowledge tree another's."""

_NO_PATHS = ("", ".", "..")
"""No id and no name of a corpus: in the path of a URL they mean another place."""


class Change(Enum):
    """What became of a document that was registered."""

    ADDED = "added"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Registered:
    """A document of a corpus.

    metadata: what its client told of it, as JSON objects hold it. vector: of its text, by the embedding
      model of its corpus; with it, the document is stored for borrowers behind its nearest neighbour.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    vector: Collection[float] | None = None

    @property
    def digest(self) -> str:
        """What tells it from every other document, in hexadecimal digits."""
        parts = [digest_of(self.text), write_metadata(self.metadata).encode()]
        if self.vector is not None:
            parts.append(array("f", self.vector).tobytes())
        return blake2b(b"\0".join(parts), digest_size=16).hexdigest()


def write_metadata(metadata: Mapping[str, Any]) -> str:
    """Write what a client told of a document as JSON, always in the same way."""
    # Names become texts before they are sorted: numbers have another order, and none among texts.
    metadata = json.loads(json.dumps(metadata, default=str))
    return json.dumps(metadata, sort_keys=True, separators=(",", ":"), default=str)


def require_corpus_name(name: str) -> str:
    """Return the name of a corpus. Raises InvalidArgument for what cannot be one."""
    if name in _NO_PATHS or not _CORPUS_NAME.fullmatch(name):
        raise InvalidArgument(
            f"a corpus has a name of 1 to 64 ASCII letters, digits, dots, dashes or underscores, not "
            f"{shown(name)}"
        )
    return name


def require_document_id(document_id: str) -> str:
    """Return the id of a document. Raises InvalidArgument for what cannot be one."""
    if document_id in _NO_PATHS:
        raise InvalidArgument(f"a document's id is a name, not {shown(document_id)}")
    return document_id


def digest_of(text: str) -> bytes:
    """Return what tells one text from every other."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
