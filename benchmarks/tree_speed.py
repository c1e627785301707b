"""Measure the knowledge tree's time for a request: match, use, admit and the evictions they cause.

    python benchmarks/tree_speed.py --nodes 1000 10000 100000 1000000 --policy pgdsf

Each request names three documents below one system text. Half of the requests repeat a popular path and
half are new, so that a full tree evicts all the time. Times are for one request, in this process.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from random import Random

from programs import command_line
from tables import table

from ragcache_engine.knowledge import POLICIES, DocumentCache, Segment

DEPTH = 3
DOCUMENT_TOKENS = 160
BLOCK_TOKENS = 16
SYSTEM = Segment("system", 64)


def endless_requests(nodes: int, random: Random) -> Iterator[list[Segment]]:
    """Yield requests without end: every second one is new, the others repeat popular paths.

    The popular paths fill a quarter of the nodes.
    """
    popular = [_path(f"p{number}") for number in range(max(1, nodes // DEPTH // 4))]
    number = 0
    while True:
        yield random.choice(popular)
        yield _path(f"n{number}")
        number += 1


def _path(name: str) -> list[Segment]:
    return [SYSTEM, *(Segment(f"{name}-{step}", DOCUMENT_TOKENS) for step in range(DEPTH))]


def fill_tree(
    nodes: int, policy: str, random: Random
) -> tuple[DocumentCache, Iterator[list[Segment]]]:
    """Make a full tree of about this many cached nodes, and the stream of further requests."""
    blocks = nodes * DOCUMENT_TOKENS // BLOCK_TOKENS
    cache = DocumentCache(
        blocks,
        POLICIES[policy],
        block_tokens=BLOCK_TOKENS,
        frequency_window=max(1000, nodes // 4),
    )
    stream = endless_requests(nodes, random)
    while cache.used_blocks < blocks:
        serve(cache, next(stream))
    return cache, stream


def serve(cache: DocumentCache, path: list[Segment]) -> None:
    """Let the cache serve one request: match, use, admit."""
    cache.admit(cache.use(cache.match(path), 0.1))


def time_requests(nodes: int, policy: str, rounds: int) -> list[float]:
    """Measure the microseconds of each of `rounds` requests to a full tree."""
    cache, stream = fill_tree(nodes, policy, Random(1))
    for _ in range(rounds // 10):
        serve(cache, next(stream))
    times: list[float] = []
    for _ in range(rounds):
        path = next(stream)
        start = time.perf_counter_ns()
        serve(cache, path)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def measure_bytes_per_node(nodes: int, policy: str) -> float:
    """Measure the memory of the cache and its policy for each node, names of documents included."""
    gc.collect()
    tracemalloc.start()
    cache, stream = fill_tree(nodes, policy, Random(1))
    del stream
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(cache.tree)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--policy", nargs="+", default=["lru", "pgdsf"], choices=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=20_000)
    arguments = parser.parse_args()
    print(f"CPython {platform.python_version()}, {platform.machine()}; microseconds a request\n")
    heads = ["policy", "nodes", "median", "p90", "p99", "bytes a node"]
    *head, _ = table(heads, [])
    print(*head, sep="\n")
    for policy in arguments.policy:
        for nodes in arguments.nodes:
            cuts = statistics.quantiles(time_requests(nodes, policy, arguments.rounds), n=100)
            size = f"{measure_bytes_per_node(nodes, policy):,.0f}" if nodes <= 100_000 else ""
            times = (f"{cuts[at - 1]:.1f}" for at in (50, 90, 99))
            print(f"| {policy} | {nodes:,} | {' | '.join(times)} | {size} |", flush=True)


if __name__ == "__main__":
    main()
