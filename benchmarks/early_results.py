"""Measure how early in a search its final result is found.

Embeds the documents and questions of the four question sets with MiniLM (kept in
~/.cache/ragcache/bench), scales the documents up to 300,000 vectors, and searches them in an IVF index
in stages, at 12.5, 25, 50 and 100% of its 1,024 lists. For each question and k it notes from which
share of the search on the provisional top-k has the ids and the order of the final one. It does the
same for the stages of HNSW. Writes early_results.md, early_results.json and early_results.png.

How the documents are scaled up: the originals stay, and copies of them are added until there are enough.
Each copy is moved by Gaussian noise, whose length is a random share between 0.35 and 0.75 of the
vector's own length, and then scaled back to unit length. So a copy is as near to its original (cosine
0.94 to 0.8) as a related passage would be.

    python benchmarks/early_results.py --out /tmp/early
    python benchmarks/early_results.py --out /tmp/early --vectors 50000 --questions 300

RAGCACHE_DATA names the folder of the question sets.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from ragcache_cli.embedding import load_embedder
from ragcache_engine.search import stages

mpl.use("Agg")
from matplotlib import pyplot as plt

DATA = Path(os.environ.get("RAGCACHE_DATA", Path(__file__).parents[2] / "shared" / "data"))
KEPT = Path.home() / ".cache" / "ragcache" / "bench"
SETS = ("squad", "multihoprag", "nq_open", "musique")
LISTS = 1_024
SHARES = (0.125, 0.25, 0.5, 1.0)
EF_SEARCH = (256, 1024)
TOP_K = (1, 2, 5)
STAGES = 64
NOISE = (0.35, 0.75)
PAPER = (0.13, 0.95)
SEED = 1

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. stands_at: for each question, the share of the search that found its final result."""

    index: str
    effort: str
    top_k: int
    stands_at: list[float]

    def right_by(self, share: float) -> float:
        """Return the share of questions whose final result stands after this share of the search."""
        return float(np.mean([at <= share + 1e-9 for at in self.stands_at]))

    def needed_for(self, share: float) -> float:
        """Return the share of the search after which this share of questions has its final result."""
        return float(np.quantile(self.stands_at, share, method="inverted_cdf"))


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def texts(name: str, kind: str, data: Path) -> list[str]:
    if kind == "questions":
        return [row["query"] for row in read(data / name / "queries.jsonl.gz")]
    rows = read(data / name / "corpus.jsonl.gz")
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


def stands_at(index: Any, question: Vectors, params: Any) -> dict[int, float]:
    """Return for each k the share of the search after which the top-k was the final one and stayed so."""
    # A smaller top-k is the beginning of a larger one, so one search is enough for all.
    every = list(stages(index, question, max(TOP_K), STAGES, params=params))
    found = [stage.ids.tolist() for stage in every]
    stands = {}
    for top_k in TOP_K:
        wrong = [at for at, ids in enumerate(found) if ids[:top_k] != found[-1][:top_k]]
        stands[top_k] = every[wrong[-1] + 1 if wrong else 0].fraction_done
    return stands


def measure(index: Any, name: str, effort: str, params: Any, questions: Vectors) -> Iterator[Row]:
    stands = [stands_at(index, row, params) for row in track(questions, f"{name} {effort}")]
    for top_k in TOP_K:
        yield Row(name, effort, top_k, [of_one[top_k] for of_one in stands])


def measure_all(vectors: Vectors, questions: Vectors, graph: bool) -> Iterator[Row]:
    d = vectors.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(d), d, LISTS)
    index.train(vectors[:: max(1, len(vectors) // (40 * LISTS))])
    index.add(vectors)
    for share in SHARES:
        params = faiss.SearchParametersIVF(nprobe=int(share * LISTS))
        yield from measure(index, "IVF", f"{share:.1%} of lists", params, questions)
    del index
    if graph:
        index = faiss.IndexHNSWFlat(d, 32)
        index.add(vectors)
        for ef_search in EF_SEARCH:
            params = faiss.SearchParametersHNSW(efSearch=ef_search)
            yield from measure(index, "HNSW", f"efSearch {ef_search}", params, questions)


def table(rows: Sequence[Row]) -> Iterator[str]:
    shares = (0.05, PAPER[0], 0.25, 0.5)
    heads = [f"right by {share:.0%}" for share in shares]
    yield "| index | searched | top | " + " | ".join(heads) + " | 95% right by | mean |"
    yield "|" + "---|" * (5 + len(shares))
    for row in rows:
        cells = [f"{row.right_by(share):.1%}" for share in shares]
        cells += [f"{row.needed_for(PAPER[1]):.1%}", f"{np.mean(row.stands_at):.1%}"]
        yield f"| {row.index} | {row.effort} | {row.top_k} | " + " | ".join(cells) + " |"


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    searched = list(dict.fromkeys(row.effort for row in rows if row.index == "IVF"))
    figure, panels = plt.subplots(1, len(searched), figsize=(3.6 * len(searched), 3.8), sharey=True)
    ends = [100 * piece / STAGES for piece in range(STAGES + 1)]
    for panel, effort in zip(panels, searched, strict=True):
        for row in rows:
            if row.index == "IVF" and row.effort == effort:
                right = [100 * row.right_by(end / 100) if end else 0.0 for end in ends]
                panel.step(ends, right, where="post", label=f"top {row.top_k}")
        panel.plot(100 * PAPER[0], 100 * PAPER[1], "k*", markersize=11, label="paper: 95% by 13%")
        panel.set(title=effort, xlabel="search done (%)", xlim=(0, 100), ylim=(60, 101))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("questions whose final top-k stands (%)")
    panels[-1].legend(loc="lower right", fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--vectors", type=int, default=300_000)
    parser.add_argument("--questions", type=int, default=1_000, help="drawn evenly from all sets")
    parser.add_argument("--no-graph", action="store_true", help="leave HNSW out: it takes minutes")
    asked = parser.parse_args(arguments)

    documents = embedded("documents", asked.data)
    questions = embedded("questions", asked.data)
    drawn = np.random.default_rng(SEED).permutation(len(questions))[: asked.questions]
    vectors = scaled_up(documents, asked.vectors)
    rows = list(measure_all(vectors, questions[drawn], graph=not asked.no_graph))
    title = (
        f"{len(vectors):,} vectors ({len(documents):,} MiniLM passages and moved copies), "
        f"{len(drawn):,} questions, {LISTS:,} lists"
    )
    lines = [f"# How early the final answer stands: {title}", "", *table(rows), ""]
    print(*lines, sep="\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "early_results.md").write_text("\n".join(lines), encoding="utf-8")
    (asked.out / "early_results.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8"
    )
    draw(rows, title, asked.out / "early_results.png")


if __name__ == "__main__":
    main()
