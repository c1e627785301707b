"""Choose the order of a prompt's documents: as retrieved, or so that more of the prompt is cached.

These are the orders that `EngineConfig.document_order` names. A path's first segment is the system text
and stays first. The orders "canonical" and "cached" change the prompt, and with it perhaps the answer,
so users have to choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragcache_engine.knowledge.document_cache import DocumentCache
from ragcache_engine.knowledge.node import Node, Segment

PathOrder = Callable[[DocumentCache, Sequence[Segment]], Sequence[Segment]]
"""Returns a request's path in another order, given the cache now; the system text stays first."""


def keep_retrieved(cache: DocumentCache, path: Sequence[Segment]) -> tuple[Segment, ...]:
    """Leave the path as the retriever ordered it, the nearest document first."""
    return tuple(path)


def sort_by_id(cache: DocumentCache, path: Sequence[Segment]) -> tuple[Segment, ...]:
    """Sort the documents by id, so that the same documents always make the same path."""
    return (*path[:1], *sorted(path[1:]))


def put_cached_first(cache: DocumentCache, path: Sequence[Segment]) -> tuple[Segment, ...]:
    """Put first the documents that are cached one after the other; the others follow as retrieved.

    Each step is greedy: it takes the document with the most tokens cached after those taken so far, and
    of equals the one retrieved first. So the cached prefix may not be the longest possible one. That
    prefix is never shorter than with the retrieved order, which stays if it is as good. O(k * k)
    look-ups for k documents.
    """
    rest = list(path[1:])
    start = cache.match(path[:1])
    if not start.whole:
        return tuple(path)
    chosen, node = [path[0]], start.nodes[0]
    while rest:
        known = [(at, _child(node, segment)) for at, segment in enumerate(rest)]
        worth = [(at, child) for at, child in known if child and _has_cached_blocks(child)]
        if not worth:
            break
        at, node = max(worth, key=lambda one: (_cached_blocks(one[1]), -one[0]))
        chosen.append(rest.pop(at))
        if _cached_blocks(node) < node.blocks:
            break
    reordered = (*chosen, *rest)
    gained = cache.match(reordered).cached_tokens > cache.match(path).cached_tokens
    return reordered if gained else tuple(path)


DOCUMENT_ORDERS: dict[str, PathOrder] = {
    "retrieved": keep_retrieved,
    "canonical": sort_by_id,
    "cached": put_cached_first,
}


def _child(node: Node, segment: Segment) -> Node | None:
    return node.children.get(segment) if node.children else None


def _cached_blocks(node: Node) -> int:
    """Count the node's leading blocks in the tier that has most of them."""
    return max(node.resident)


def _has_cached_blocks(node: Node) -> bool:
    """Whether the node has cached blocks; for a node too short to own one, whether any below it has."""
    return _cached_blocks(node) > 0 or (not node.blocks and any(node.below))
