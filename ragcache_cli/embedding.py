"""Embedding models: the methods that an index needs, and MiniLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ragcache_cli.extras import needed
from ragcache_cli.terminal import Done

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors. name: an index keeps it, so that vectors of two models never mix."""

    name: str

    def embed(self, texts: Sequence[str], done: Done | None = None) -> Vectors:
        """Return the vectors: float32, shape (texts, dimension), each row of length 1.

        done: called with the number of embedded texts, and of all texts.
        """
        ...

    def count_tokens(self, text: str) -> int: ...


def load_embedder() -> Embedder:
    """Load the embedding model that all commands use. Raises MissingExtra."""
    with needed("searching passages"):
        from ragcache_engine.corpora.embedders import MiniLM

        return MiniLM()
