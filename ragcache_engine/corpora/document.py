"""A registered document, and what becomes of it when it is registered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from sys import getsizeof
from typing import Any

from ragcache_engine.checks import shown
from ragcache_engine.errors import InvalidArgument

DOCUMENT_BYTES = 2_000
"""About what a document takes beside its text and what is told of it: fingerprints, names, entries."""

NUMBER_BYTES = 4
"""What a number of a vector takes."""


_CORPUS_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
"""Without slash and colon: they would make one document's name in the knowledge tree another's."""


class Change(Enum):
    """What became of a document that was registered."""

    ADDED = "added"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Registered:
    """A document of a corpus.

    details: what its client told of it, as JSON objects hold it. vector: of its text, by the embedding
      model of its corpus; with it, the document is stored for borrowers behind its nearest neighbour.
    """

    id: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)
    vector: Sequence[float] | None = None

    @property
    def digest(self) -> str:
        """What tells its text from every other, in hexadecimal digits."""
        return digest_of(self.text).hex()

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        vector_bytes = 0 if self.vector is None else NUMBER_BYTES * len(self.vector)
        return DOCUMENT_BYTES + getsizeof(self.text) + getsizeof(str(self.details)) + vector_bytes


def require_corpus_name(name: str) -> str:
    """Return the name of a corpus. Raises InvalidArgument for what cannot be one."""
    if not _CORPUS_NAME.fullmatch(name):
        raise InvalidArgument(
            f"a corpus has a name of 1 to 64 ASCII letters, digits, dots, dashes or underscores, not "
            f"{shown(name)}"
        )
    return name


def digest_of(text: str) -> bytes:
    """Return what tells one text from every other."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
