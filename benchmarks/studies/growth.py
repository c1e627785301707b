"""What a request costs as documents grow from a thousand to a million, and requests in flight to 64."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ragcache_cli.bench.full_tree import measured

ROUNDS = 2_000
DIMENSIONS = 384
QUERIES = 20
IN_FLIGHT = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class TreeCost:
    nodes: int
    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class SearchCost:
    """Medians of one query."""

    vectors: int
    whole_ms: float
    staged_ms: float


@dataclass(frozen=True, slots=True)
class FlightCost:
    """request_ms: wall time of all requests over their number, the model taking none."""

    in_flight: int
    request_ms: float


@dataclass(frozen=True, slots=True)
class Growth:
    tree: tuple[TreeCost, ...] = ()
    search: tuple[SearchCost, ...] = ()
    flight: tuple[FlightCost, ...] = ()


def growth(nodes: Sequence[int], policy: str) -> Growth:
    """nodes: documents in the tree, and vectors in the index."""
    return Growth(
        tuple(tree_cost(count, policy) for count in nodes),
        tuple(search_cost(count) for count in nodes),
        tuple(flight_cost(count) for count in IN_FLIGHT),
    )


def tree_cost(nodes: int, policy: str) -> TreeCost:
    """A full tree; every second request repeats a popular path, the others are new and evict."""
    times = measured(nodes, policy, ROUNDS)
    return TreeCost(nodes, statistics.median(times), statistics.quantiles(times, n=100)[-1])


def search_cost(vectors: int) -> SearchCost:
    """Random vectors of unit length in an IVF index; how it is made matters little for its cost."""
    import faiss
    import numpy as np

    from ragcache_engine.search import stages

    random = np.random.default_rng(1)
    lists = max(1, int(vectors**0.5))
    index: Any = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSIONS), DIMENSIONS, lists)
    index.cp.min_points_per_centroid = 1
    index.cp.niter = 4
    for start in range(0, vectors, 50_000):
        data = random.standard_normal((min(50_000, vectors - start), DIMENSIONS), dtype=np.float32)
        faiss.normalize_L2(data)
        if start == 0:
            index.train(data[: max(lists, min(len(data), 20 * lists))])
        index.add(data)
    index.nprobe = max(1, lists // 8)
    queries = random.standard_normal((QUERIES, DIMENSIONS), dtype=np.float32)
    faiss.normalize_L2(queries)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        whole, staged = [], []
        for query in queries:
            began = time.perf_counter()
            index.search(query[None], 2)
            middle = time.perf_counter()
            for _ in stages(index, query, 2, 8):
                pass
            whole.append(middle - began)
            staged.append(time.perf_counter() - middle)
    finally:
        faiss.omp_set_num_threads(threads)
    return SearchCost(vectors, 1e3 * statistics.median(whole), 1e3 * statistics.median(staged))


def flight_cost(in_flight: int) -> FlightCost:
    """The engine in memory, whose model takes no time: what is left is ours."""
    import asyncio

    from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

    documents = [Document(f"d{number}", f"document {number} " * 80) for number in range(200)]
    dice, count = Random(1), max(64, 4 * in_flight)

    async def ask(engine: RAGCacheEngine) -> float:
        turnstile = asyncio.Semaphore(in_flight)

        async def one(number: int) -> None:
            chosen = dice.sample(documents, 2)
            prompt = "\n\n".join([*(document.text for document in chosen), f"Question {number}?"])
            async with turnstile:
                await engine.agenerate(prompt, chosen, SamplingOptions(max_tokens=4))

        began = time.perf_counter()
        await asyncio.gather(*map(one, range(count)))
        return time.perf_counter() - began

    with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        asyncio.run(ask(engine))
        return FlightCost(in_flight, 1e3 * asyncio.run(ask(engine)) / count)
