"""Measure the knowledge tree's time for a request: match, use, admit and the evictions they cause.

    python benchmarks/tree_speed.py --nodes 1000 10000 100000 1000000 --policy pgdsf

Each request names three documents below one system text. Half of the requests repeat a popular path and
half are new, so that a full tree evicts all the time. Times are for one request, in this process.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import tracemalloc
from random import Random

from full_tree import fill_tree, time_requests

from ragcache_engine.knowledge import POLICIES


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--policy", nargs="+", default=["lru", "pgdsf"], choices=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=20_000)
    arguments = parser.parse_args()
    print(f"CPython {platform.python_version()}, {platform.machine()}; microseconds a request")
    print(f"{'policy':>10} {'nodes':>9} {'median':>8} {'p90':>8} {'p99':>8} {'bytes/node':>11}")
    for policy in arguments.policy:
        for nodes in arguments.nodes:
            times = time_requests(nodes, policy, arguments.rounds)
            cuts = statistics.quantiles(times, n=100)
            size = f"{measure_bytes_per_node(nodes, policy):,.0f}" if nodes <= 100_000 else ""
            print(
                f"{policy:>10} {nodes:>9,} {statistics.median(times):>8.1f} {cuts[89]:>8.1f} "
                f"{cuts[98]:>8.1f} {size:>11}",
                flush=True,
            )


if __name__ == "__main__":
    main()
