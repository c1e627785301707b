"""Measures how much of a long search the prefill hides, with and without speculation."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from ragcache_cli.bench.context import RunContext
from ragcache_cli.bench.corpus_files import StoredSet
from ragcache_cli.bench.figures import quantile
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.systems import FULL, SYSTEMS
from ragcache_cli.bench.worker_client import Worker
from ragcache_cli.bench.workload import Request, draw_questions
from studies.full_plans import HIDDEN_SEARCH

TOP_K = 2
INDEX_VECTORS = 400_000
STAGED, PLAIN = FULL, SYSTEMS["no-speculation"]


@dataclass(frozen=True, slots=True)
class HiddenSearch:
    """The effect of speculation during the search. Times are medians over the questions, in seconds.

    hidden, low, high: median and quartiles of the share of a search that ran during the prefill of its
      final documents. gain_s: TTFT without speculation less that with it, question by question.
    """

    questions: int
    vectors: int
    search_s: float
    hidden: float
    low: float
    high: float
    gain_s: float
    gain_low_s: float
    gain_high_s: float
    plain_ttft_s: float
    staged_ttft_s: float
    outcomes: Mapping[str, int]


def compare_pairs(
    staged: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], vectors: int
) -> HiddenSearch:
    """Compare answers with and without speculation, to the same questions in the same order.

    There must be at least one question. vectors: how many the index has.
    """
    shares = sorted(one["hidden"] for one in staged)
    gains = sorted(
        alone["ttft_s"] - helped["ttft_s"] for alone, helped in zip(plain, staged, strict=True)
    )
    return HiddenSearch(
        questions=len(shares),
        vectors=vectors,
        search_s=statistics.median(one["search_s"] for one in plain),
        hidden=quantile(shares, 0.5),
        low=quantile(shares, 0.25),
        high=quantile(shares, 0.75),
        gain_s=quantile(gains, 0.5),
        gain_low_s=quantile(gains, 0.25),
        gain_high_s=quantile(gains, 0.75),
        plain_ttft_s=statistics.median(one["ttft_s"] for one in plain),
        staged_ttft_s=statistics.median(one["ttft_s"] for one in staged),
        outcomes=dict(Counter(one["speculation"] for one in staged)),
    )


def study_hidden_search(
    count: int, workers: Sequence[Worker], context: RunContext
) -> dict[str, Any]:
    """Ask the main set's questions on an index that is large enough to make searching slow.

    Every question is asked with and without speculation. Returns a HiddenSearch as JSON.
    """
    ready = context.corpora.ready(context.main, TOP_K)
    stored = StoredSet.read(ready.prepared.folder)
    folder = context.corpora.folder / "scaled-up"
    scale_up(stored, INDEX_VECTORS, context.seed).write(folder)
    numbers = draw_questions(len(stored.questions), count, None, context.seed)
    pair = [worker for worker in workers if worker.system in (STAGED, PLAIN)]
    answers: dict[str, list[dict[str, Any]]] = {STAGED.key: [], PLAIN.key: []}
    for worker in pair:
        worker.prepare(folder, TOP_K)
        # The engine learns from the first questions what the prompts look like.
        worker.play([Request(number, 0.0, 1) for number in numbers[:3]], 1)
    for at, number in enumerate(numbers):
        for worker in pair if at % 2 else reversed(pair):
            worker.clear()
            answers[worker.system.key] += worker.play([Request(number, 0.0, 1)], 1)
    context.say(f"search hidden in {count} questions")
    return asdict(compare_pairs(answers[STAGED.key], answers[PLAIN.key], INDEX_VECTORS))


def scale_up(stored: StoredSet, vectors: int, seed: int) -> StoredSet:
    """Give a set an IVF index of this many vectors, with the same questions and documents.

    The vectors are copies of the documents' own, moved by noise so that they become neighbours. Every
    list is searched. Each copy counts as another document, because no store holds one document hundreds
    of times.
    """
    import faiss
    import numpy as np

    random = np.random.default_rng(seed)
    count, dimension = stored.index.ntotal, stored.index.d
    if hasattr(stored.index, "make_direct_map"):
        stored.index.make_direct_map()
    own = stored.index.reconstruct_n(0, count)
    rows = np.arange(vectors) % count
    data = own[rows]
    for start in range(count, vectors, 20_000):
        part = data[start : start + 20_000]
        noise = random.standard_normal(part.shape, dtype=np.float32)
        faiss.normalize_L2(noise)
        part += random.uniform(0.35, 0.75, (len(part), 1)).astype(np.float32) * noise
    faiss.normalize_L2(data)
    lists = max(1, int(vectors**0.5))
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dimension), dimension, lists)
    index.cp.niter = 5
    index.train(data[random.integers(0, len(data), 40 * lists)])
    index.add(data)
    index.nprobe = lists
    names = (rows + np.arange(vectors) // count) % count
    return replace(stored, index=index, rows=[stored.rows[name] for name in names])


def hidden_search(record: RunRecord) -> Iterator[str]:
    """Write the section of the report on how much of the search the prefill hid, and the gain."""
    if not (measured := record.studies.get(HIDDEN_SEARCH)):
        return
    found = TypeAdapter(HiddenSearch).validate_python(measured)
    yield "## Search hidden by prefill"
    yield ""
    yield (
        f"{found.questions} questions, one at a time, on an index of {found.vectors:,} vectors: the "
        f"search takes {found.search_s:.3f} s in the median. {found.hidden:.0%} of it (quartiles "
        f"{found.low:.0%} to {found.high:.0%}; the paper: 76.9%) ran beside the prefill of the documents "
        f"it ended with. TTFT {found.plain_ttft_s:.3f} s without speculation, "
        f"{found.staged_ttft_s:.3f} s with; pair by pair {1e3 * found.gain_s:+.0f} ms saved (quartiles "
        f"{1e3 * found.gain_low_s:+.0f} to {1e3 * found.gain_high_s:+.0f}). Outcomes: "
        + ", ".join(f"{name} {count}" for name, count in found.outcomes.items())
        + "."
    )
    yield ""
