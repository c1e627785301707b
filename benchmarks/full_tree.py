"""A knowledge tree that requests keep full, to measure the cost of one request at any size."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

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
