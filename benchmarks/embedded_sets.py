"""The documents and questions of the shared sets as MiniLM's vectors, scaled up to any number.

The vectors are kept in ~/.cache/ragcache/bench. Where more documents are wanted than there are, copies of
them are added. Each copy is moved by Gaussian noise, whose length is a random share between 0.35 and 0.75
of the vector's own length, and then scaled back to unit length. So a copy is as near to its original
(cosine 0.94 to 0.8) as a related passage would be.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray
from question_files import read_lines
from rich.progress import track

from ragcache_cli.embedding import load_embedder

KEPT = Path.home() / ".cache" / "ragcache" / "bench"
SETS = ("squad", "multihoprag", "nq_open", "musique")
LISTS = 1_024
SHARES = (0.125, 0.25, 0.5, 1.0)
NOISE = (0.35, 0.75)
SEED = 1

Vectors = NDArray[np.float32]


def texts(name: str, kind: str, data: Path) -> list[str]:
    if kind == "questions":
        return [row["query"] for row in read_lines(data / name / "queries.jsonl.gz")]
    rows = read_lines(data / name / "corpus.jsonl.gz")
    return [f"{row['title']}\n{row['text']}" if row["title"] else row["text"] for row in rows]


def embedded(kind: str, data: Path) -> Vectors:
    """Embed all sets, or read the vectors that an earlier run kept: float32, unit length."""
    found = []
    for name in track(SETS, f"embedding {kind}"):
        path = KEPT / f"{name}-{kind}.npy"
        if not path.exists():
            KEPT.mkdir(parents=True, exist_ok=True)
            vectors = load_embedder().embed(texts(name, kind, data))
            np.save(path.with_suffix(".part.npy"), vectors)
            path.with_suffix(".part.npy").rename(path)
        found.append(np.load(path))
    return np.concatenate(found)


def scaled_up(documents: Vectors, number: int) -> Vectors:
    """Return the documents with moved copies of them, `number` vectors in all."""
    random = np.random.default_rng(SEED)
    copies = documents[np.arange(number - len(documents)) % len(documents)]
    noise = random.standard_normal(copies.shape, dtype=np.float32)
    faiss.normalize_L2(noise)
    lengths = random.uniform(*NOISE, (len(copies), 1)).astype(np.float32)
    moved = copies + lengths * noise
    faiss.normalize_L2(moved)
    return np.concatenate([documents, moved])
