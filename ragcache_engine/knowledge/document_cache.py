"""The document cache as the paper describes it: whole prompts, one after another, in one tier.

The engine drives its knowledge tree block by block, through `tiers`. A DocumentCache has a tree of its
own and the paper's view of it: for replaying traces, comparing policies, and estimating what the engine
has cached in another process.
Source: RAGCache, §5.1 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.freed import FreedBlocks
from ragcache_engine.knowledge.node import Node, Segment
from ragcache_engine.knowledge.tier import RANK, Tier
from ragcache_engine.knowledge.tree import FREQUENCY_WINDOW, KnowledgeTree

DEVICE = RANK[Tier.DEVICE]


class CachedPath(NamedTuple):
    """How much of a path is cached.

    path: the path that was asked for.
    nodes: the leading nodes that the tree knows, in path order; they may hold no block any more.
    whole: how many leading nodes are cached to their last block.
    cached_tokens, computed_tokens: the paper's alpha and beta of the path, without the question.
    """

    path: tuple[Segment, ...]
    nodes: tuple[Node, ...]
    whole: int
    cached_tokens: int
    computed_tokens: int


class DocumentCache:
    """A cache of paths of documents, with a budget and an eviction policy.

    capacity_blocks: blocks the cache may hold. policy: makes its eviction policy.
    block_tokens, frequency_window: as in KnowledgeTree.
    cache_depth: only this many leading segments of a path are kept; None keeps all.
    Raises ValueError for sizes below what they need.

    Match a path before its request runs; when the request has ended, record its use and admit its nodes:

        >>> cache = DocumentCache(40, POLICIES["lru"], block_tokens=16)
        >>> path = [Segment("system", 32), Segment("d1", 320), Segment("d2", 160)]
        >>> before = cache.match(path)
        >>> freed = cache.admit(cache.use(before, prefill_s=0.4))
        >>> before.cached_tokens, cache.match(path).cached_tokens
        (0, 512)
        >>> cache.match([*path[:2], Segment("d3", 160)]).cached_tokens     # shares the beginning
        352
    """

    def __init__(
        self,
        capacity_blocks: int,
        policy: Callable[[], EvictionPolicy],
        *,
        block_tokens: int = 16,
        frequency_window: int = FREQUENCY_WINDOW,
        cache_depth: int | None = None,
    ) -> None:
        if cache_depth is not None and cache_depth < 1:
            raise ValueError(f"cache_depth is at least 1, got {cache_depth}")
        self.tree = KnowledgeTree(
            {Tier.DEVICE: capacity_blocks},
            policy,
            block_tokens=block_tokens,
            frequency_window=frequency_window,
        )
        self._depth = cache_depth

    @property
    def policy(self) -> EvictionPolicy:
        """The cache's eviction policy."""
        return self.tree.policy(Tier.DEVICE)

    @property
    def used_blocks(self) -> int:
        """Blocks in the cache now."""
        return self.tree.used(Tier.DEVICE)

    def match(self, path: Sequence[Segment]) -> CachedPath:
        """Return how much of the path is cached, from its start. Changes nothing; O(segments)."""
        node, nodes = self.tree.root, []
        blocks, whole, unbroken = 0, 0, True
        for segment in path:
            child = node.children.get(segment) if node.children else None
            if child is None:
                break
            nodes.append(child)
            if unbroken:
                blocks += child.resident[DEVICE]
                unbroken = child.resident[DEVICE] == child.blocks
                whole += unbroken
            node = child
        total = sum(segment.tokens for segment in path)
        cached = blocks * self.tree.block_tokens
        return CachedPath(tuple(path), tuple(nodes), whole, cached, total - cached)

    def use(self, match: CachedPath, prefill_s: float = 0.0) -> tuple[Node, ...]:
        """Record a completed use of the path; return its nodes, made where they were missing.

        match: from before the request ran; it tells what the request had to compute.
        prefill_s: T(alpha, beta) of the request, spread over the computed tokens (formula 4).
        """
        computed = match.computed_tokens
        node, nodes = self.tree.root, []
        for segment in match.path[: self._depth]:
            node = self.tree.child(node, segment)
            nodes.append(node)
        self.tree.record_use(nodes, match.whole, prefill_s / computed if computed > 0 else 0.0)
        return tuple(nodes)

    def admit(self, nodes: Sequence[Node]) -> list[FreedBlocks]:
        """Let a path's blocks in, as many from its start as the policy makes room for.

        nodes: a path as `use` returned it. Returns the blocks that were evicted.
        """
        freed: list[FreedBlocks] = []
        with self.tree.pinned(nodes):
            for node in nodes:
                if node.resident[DEVICE] == node.blocks > 0:
                    continue
                freed += self.tree.grow(node, Tier.DEVICE, node.blocks)
                if not self.tree.supports_child(node, Tier.DEVICE):
                    break
        return freed
