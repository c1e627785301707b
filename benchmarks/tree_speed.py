"""What the knowledge tree costs a request: match, use, admit and the evictions they cause.

    python benchmarks/tree_speed.py --nodes 1000 10000 100000 1000000 --policy pgdsf

Requests name three documents below one system text; half of them repeat a popular path, half are
new, so that a full tree evicts all the time. Times are of this process on this machine, per request.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
import tracemalloc
from collections.abc import Iterator
from random import Random

from ragcache_engine.knowledge import POLICIES, KnowledgeTree, Segment, Tier

DEPTH = 3
DOCUMENT_TOKENS = 160
BLOCK_TOKENS = 16
SYSTEM = Segment("system", 64)


def requests(nodes: int, random: Random) -> Iterator[list[Segment]]:
    """Endless. As many popular paths as fill a quarter of the nodes; every second request is new."""
    popular = [_path(f"p{number}") for number in range(max(1, nodes // DEPTH // 4))]
    number = 0
    while True:
        yield random.choice(popular)
        yield _path(f"n{number}")
        number += 1


def _path(name: str) -> list[Segment]:
    return [SYSTEM, *(Segment(f"{name}-{step}", DOCUMENT_TOKENS) for step in range(DEPTH))]


def full_tree(
    nodes: int, policy: str, random: Random
) -> tuple[KnowledgeTree, Iterator[list[Segment]]]:
    """A tree that holds about so many cached nodes, with no block free."""
    blocks = nodes * DOCUMENT_TOKENS // BLOCK_TOKENS
    tree = KnowledgeTree(
        {Tier.DEVICE: blocks},
        POLICIES[policy],
        block_tokens=BLOCK_TOKENS,
        frequency_window=max(1000, nodes // 4),
    )
    stream = requests(nodes, random)
    while tree.used(Tier.DEVICE) < blocks:
        _serve(tree, next(stream))
    return tree, stream


def _serve(tree: KnowledgeTree, path: list[Segment]) -> None:
    tree.admit(tree.use(tree.match(path), 0.1))


def measured(nodes: int, policy: str, rounds: int) -> list[float]:
    """Microseconds of each of `rounds` requests."""
    tree, stream = full_tree(nodes, policy, Random(1))
    for _ in range(rounds // 10):
        _serve(tree, next(stream))
    times: list[float] = []
    for _ in range(rounds):
        path = next(stream)
        start = time.perf_counter_ns()
        _serve(tree, path)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def bytes_per_node(nodes: int, policy: str) -> float:
    """Everything the tree and its policy hold, by node remembered, document names included."""
    gc.collect()
    tracemalloc.start()
    tree, stream = full_tree(nodes, policy, Random(1))
    del stream
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(tree)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--policy", nargs="+", default=["lru", "pgdsf"], choices=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=20_000)
    arguments = parser.parse_args()
    print(f"CPython {platform.python_version()}, {platform.machine()}; microseconds a request")
    print(f"{'policy':>10} {'nodes':>9} {'median':>8} {'p90':>8} {'p99':>8} {'bytes/node':>11}")
    for policy in arguments.policy:
        for nodes in arguments.nodes:
            times = measured(nodes, policy, arguments.rounds)
            cuts = statistics.quantiles(times, n=100)
            size = f"{bytes_per_node(nodes, policy):,.0f}" if nodes <= 100_000 else ""
            print(
                f"{policy:>10} {nodes:>9,} {statistics.median(times):>8.1f} {cuts[89]:>8.1f} "
                f"{cuts[98]:>8.1f} {size:>11}",
                flush=True,
            )


if __name__ == "__main__":
    main()
