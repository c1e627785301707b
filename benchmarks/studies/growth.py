"""Measures a request's cost with a thousand to a million documents, and up to 64 requests in flight."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from pydantic import TypeAdapter

from ragcache_cli.bench.context import RunContext
from ragcache_cli.bench.plan import Plan
from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.markdown import table
from ragcache_engine.knowledge import DEFAULT_POLICY
from studies.full_plans import GROWTH, TREE_NODES
from studies.full_tree import time_requests

ROUNDS = 2_000
DIMENSIONS = 384
QUERIES = 20
IN_FLIGHT = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class TreeCost:
    """The cost of a request in a full tree of this many nodes."""

    nodes: int
    median_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class SearchCost:
    """The cost of a query: the medians of a whole search, and of one in stages."""

    vectors: int
    whole_ms: float
    staged_ms: float


@dataclass(frozen=True, slots=True)
class FlightCost:
    """The engine's own time for a request. request_ms: wall time of all requests over their number."""

    in_flight: int
    request_ms: float


@dataclass(frozen=True, slots=True)
class Growth:
    """All costs, by size."""

    tree: tuple[TreeCost, ...] = ()
    search: tuple[SearchCost, ...] = ()
    flight: tuple[FlightCost, ...] = ()


def study_growth(plan: Plan, context: RunContext) -> dict[str, Any] | None:
    """Measure a Growth at the sizes of the plan. Returns it as JSON; None if the plan has no sizes."""
    nodes = TREE_NODES[plan.name]
    if not nodes:
        return None
    context.say("growth: the tree, the search and the engine by size")
    return asdict(measure_growth(nodes, DEFAULT_POLICY))


def measure_growth(nodes: Sequence[int], policy: str) -> Growth:
    """Measure all costs. nodes: how many documents the tree has, and how many vectors the index."""
    return Growth(
        tuple(measure_tree(count, policy) for count in nodes),
        tuple(measure_search(count) for count in nodes),
        tuple(measure_flight(count) for count in IN_FLIGHT),
    )


def measure_tree(nodes: int, policy: str) -> TreeCost:
    """Time requests to a full tree: every second one repeats a popular path, the others evict."""
    times = time_requests(nodes, policy, ROUNDS)
    return TreeCost(nodes, statistics.median(times), statistics.quantiles(times, n=100)[-1])


def measure_search(vectors: int) -> SearchCost:
    """Time searches of random unit vectors in an IVF index; which vectors matters little for the cost."""
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


def measure_flight(in_flight: int) -> FlightCost:
    """Time requests to the memory backend, whose model takes no time: what is left is the engine's."""
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


def growth(record: RunRecord) -> Iterator[str]:
    """Write the section of the report on the cost of a request, by size."""
    if not (measured := record.studies.get(GROWTH)):
        return
    found = TypeAdapter(Growth).validate_python(measured)
    yield "## Growth"
    yield ""
    if found.tree:
        yield "The knowledge tree, full, one request (match, use, admit and the evictions they cause):"
        yield ""
        yield from table(
            ("nodes", "median, µs", "p99, µs"),
            ((f"{one.nodes:,}", f"{one.median_us:.0f}", f"{one.p99_us:.0f}") for one in found.tree),
        )
    if found.search:
        yield "Search, IVF of sqrt(n) lists, an eighth of them probed, top-2, one thread:"
        yield ""
        yield from table(
            ("vectors", "whole, ms", "in stages, ms"),
            (
                (f"{one.vectors:,}", f"{one.whole_ms:.2f}", f"{one.staged_ms:.2f}")
                for one in found.search
            ),
        )
    if found.flight:
        yield "The engine around a model that computes nothing, by requests in flight:"
        yield ""
        yield from table(
            ("in flight", "ms of processor a request"),
            ((str(one.in_flight), f"{one.request_ms:.2f}") for one in found.flight),
        )
