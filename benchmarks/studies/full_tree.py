"""A knowledge tree kept full by a stream of requests: what one costs, however large the tree is."""

from __future__ import annotations

import time
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
        serve(tree, next(stream))
    return tree, stream


def serve(tree: KnowledgeTree, path: list[Segment]) -> None:
    """One request: match, use, admit."""
    tree.admit(tree.use(tree.match(path), 0.1))


def measured(nodes: int, policy: str, rounds: int) -> list[float]:
    """Microseconds of each of `rounds` requests."""
    tree, stream = full_tree(nodes, policy, Random(1))
    for _ in range(rounds // 10):
        serve(tree, next(stream))
    times: list[float] = []
    for _ in range(rounds):
        path = next(stream)
        start = time.perf_counter_ns()
        serve(tree, path)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times
