"""What is measured beside the plays: equal answers, their quality, hidden search, growth."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragcache_cli.bench.corpora import Corpora
from ragcache_cli.bench.corpus_files import Kept
from ragcache_cli.bench.drive import up
from ragcache_cli.bench.figures import Differing
from ragcache_cli.bench.growth import growth
from ragcache_cli.bench.overlap import Overlap, overlap_of
from ragcache_cli.bench.plan import SKEW, Group, Plan
from ragcache_cli.bench.process import Worker
from ragcache_cli.bench.quality import Graded, quality
from ragcache_cli.bench.report import Report
from ragcache_cli.bench.systems import FULL, OFF, SYSTEMS, Sizes
from ragcache_cli.bench.workload import Request, drawn
from ragcache_engine.knowledge import DEFAULT_POLICY

Say = Callable[[str], None]
TOP_K = 2
FREE_TOKENS = 24
OVERLAP_VECTORS = 400_000
STAGED, PLAIN = FULL, SYSTEMS["no-speculation"]


def group_checks(
    group: Group, corpora: Corpora, main: str, sizes: Sizes, seed: int, report: Report, say: Say,
    workers: Sequence[Worker],
) -> None:  # fmt: skip
    """Those a group asks for, of its systems that are up, each into the report as soon as it is there."""
    if group.quality:
        report.quality = qualities(group.quality, workers, corpora, main, sizes, seed, say)
    if group.overlap:
        report.overlap = hidden(group.overlap, workers, corpora, main, seed, say)


def last_checks(
    plan: Plan, corpora: Corpora, main: str, sizes: Sizes, log: Path, seed: int, report: Report,
    say: Say,
) -> None:  # fmt: skip
    """Those that need systems of their own, or none."""
    if plan.equality:
        report.float32 = equal_in_float32(plan.equality, corpora, main, sizes, log, seed, say)
    if plan.nodes:
        say("growth: the tree, the search and the engine by size")
        report.growth = growth(plan.nodes, DEFAULT_POLICY)


def equal_in_float32(
    count: int, corpora: Corpora, main: str, sizes: Sizes, log: Path, seed: int, say: Say
) -> list[Differing]:
    """Where arithmetic is exact enough for batches not to matter, no answer may differ."""
    exact = replace(sizes, dtype="float32", device_bytes=2 * sizes.device_bytes)
    with up((OFF, FULL), exact, log, say) as workers:
        answers = _answers(workers, count, corpora, main, exact, seed, say)
    texts = {key: [answer["text"] for answer in each] for key, each in answers.items()}
    first = next(iter(texts))
    return [
        Differing(first, key, sum(a != b for a, b in zip(texts[first], each, strict=True)), count)
        for key, each in texts.items()
        if key != first
    ]


def qualities(
    count: int, workers: Sequence[Worker], corpora: Corpora, main: str, sizes: Sizes, seed: int,
    say: Say,
) -> dict[str, Graded]:  # fmt: skip
    """Of the systems that write prompts in another order, and of one that does not."""
    ready = corpora.ready(main, TOP_K)
    numbers = _numbers(count, len(ready.found), seed)
    accepted = [ready.given.questions[number].answers for number in numbers]
    wanted = [one for one in workers if one.system == FULL or one.system.changes_prompt]
    found = {}
    for key, answers in _answers(wanted, count, corpora, main, sizes, seed, say).items():
        prompt = sum(answer["prompt"] for answer in answers)
        if graded := quality([answer["text"] for answer in answers], accepted):
            found[key] = Graded(
                graded,
                cached=sum(sum(answer["cached"]) for answer in answers) / prompt,
                ttft_s=statistics.fmean(answer["ttft_s"] for answer in answers),
            )
    return found


def _numbers(count: int, questions: int, seed: int) -> list[int]:
    """Questions as often asked as in the main trace, so that caches have something to reuse."""
    return drawn(questions, count, SKEW, seed)


def _answers(
    workers: Sequence[Worker], count: int, corpora: Corpora, main: str, sizes: Sizes, seed: int,
    say: Say,
) -> Mapping[str, list[dict[str, Any]]]:  # fmt: skip
    """Every system's free answers to the same questions, several at a time, from an empty cache."""
    ready = corpora.ready(main, TOP_K)
    requests = [
        Request(number, 0.0, FREE_TOKENS) for number in _numbers(count, len(ready.found), seed)
    ]
    found = {}
    for worker in workers:
        worker.prepare(ready.prepared.folder, TOP_K)
        worker.clear()
        found[worker.system.key] = worker.play(requests, sizes.at_once, ignore_eos=False)
        say(f"{count} free answers of {worker.system.name} in {sizes.dtype}")
    return found


def hidden(
    count: int, workers: Sequence[Worker], corpora: Corpora, main: str, seed: int, say: Say
) -> Overlap:
    """The main set's questions on an index so much larger that searching takes time."""
    ready = corpora.ready(main, TOP_K)
    kept = Kept.read(ready.prepared.folder)
    folder = corpora.folder / "scaled-up"
    scaled_up(kept, OVERLAP_VECTORS, seed).write(folder)
    numbers = drawn(len(kept.questions), count, None, seed)
    pair = [worker for worker in workers if worker.system in (STAGED, PLAIN)]
    answers: dict[str, list[dict[str, Any]]] = {STAGED.key: [], PLAIN.key: []}
    for worker in pair:
        worker.prepare(folder, TOP_K)
        # The engine learns from the first what the prompts look like.
        worker.play([Request(number, 0.0, 1) for number in numbers[:3]], 1)
    for at, number in enumerate(numbers):
        for worker in pair if at % 2 else reversed(pair):
            worker.clear()
            answers[worker.system.key] += worker.play([Request(number, 0.0, 1)], 1)
    say(f"search hidden in {count} questions")
    return overlap_of(answers[STAGED.key], answers[PLAIN.key], OVERLAP_VECTORS)


def scaled_up(kept: Kept, vectors: int, seed: int) -> Kept:
    """The same questions and documents, and an IVF index of `vectors`: copies of the documents' own,
    moved by noise so that they are neighbours of them; all lists are searched.

    A copy stands for another document, as no store would hold one hundreds of times.
    """
    import faiss
    import numpy as np

    random = np.random.default_rng(seed)
    count, dimension = kept.index.ntotal, kept.index.d
    if hasattr(kept.index, "make_direct_map"):
        kept.index.make_direct_map()
    own = kept.index.reconstruct_n(0, count)
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
    return replace(kept, index=index, rows=[kept.rows[name] for name in names])
