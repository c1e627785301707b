"""Vectors of the shared sets by MiniLM, kept in the cache home, and the documents scaled up.

Where more documents are wanted than there are, copies of them are added. Each copy is moved by Gaussian
noise, whose length is a random share between 0.35 and 0.75 of the vector's own length, and then scaled
back to unit length. So a copy is as near to its original (cosine 0.94 to 0.8) as a related passage would
be.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from question_files import CORPUS, DATA, QUERIES, SETS, read_lines, titled

from ragcache_cli import embedding
from ragcache_cli.folders import cache_home
from ragcache_engine.corpora.embedders import MiniLM

NOISE = (0.35, 0.75)
SEED = 1


def embed_once(texts: Sequence[str]) -> Any:
    """Embed texts, or read the vectors that an earlier run has left: float32, unit length."""
    digest = blake2b(digest_size=12)
    for text in (MiniLM.name, *texts):
        digest.update(text.encode() + b"\0")
    path = cache_home() / "bench" / f"{digest.hexdigest()}.npy"
    if path.is_file():
        return np.load(path)
    vectors = embedding.load_embedder().embed(texts)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part.npy")
    np.save(part, vectors)
    part.rename(path)
    return vectors


def texts(name: str, kind: str) -> list[str]:
    """Return a set's "questions", or its "documents"."""
    if kind == "questions":
        return [row["query"] for row in read_lines(DATA / name / QUERIES)]
    return [titled(row) for row in read_lines(DATA / name / CORPUS)]


def embedded(kind: str) -> Any:
    """Embed all sets."""
    return np.concatenate([embed_once(texts(name, kind)) for name in SETS])


def scaled_up(documents: Any, number: int) -> Any:
    """Return the documents with moved copies of them, `number` vectors in all."""
    import faiss

    random = np.random.default_rng(SEED)
    copies = documents[np.arange(number - len(documents)) % len(documents)]
    noise = random.standard_normal(copies.shape, dtype=np.float32)
    faiss.normalize_L2(noise)
    lengths = random.uniform(*NOISE, (len(copies), 1)).astype(np.float32)
    moved = copies + lengths * noise
    faiss.normalize_L2(moved)
    return np.concatenate([documents, moved])
