"""Finds out where each part of a request's prompt comes from, and why a document must be computed."""

from __future__ import annotations

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.node_record import B
from ragcache_engine.tiers.provenance import PromptSources, Reason
from ragcache_engine.tiers.requests import TrackedRequest


def trace_sources(
    request: TrackedRequest, loaded_tokens: int, index: BlockIndex[B]
) -> PromptSources:
    """Tell where the prompt of a request that is being admitted comes from.

    loaded_tokens: how many tokens behind those on the device are being loaded.
    """
    block_tokens = index.tree.block_tokens
    device, most = (
        request.device_blocks,
        request.prompt.tokens - 1,
    )  # the last token is always computed
    runs: list[tuple[int, str]] = []
    if device:
        runs.append((min(device * block_tokens, most), Tier.DEVICE.value))
    loaded = -(-loaded_tokens // block_tokens)
    for at, key in enumerate(request.prompt.keys[device : device + loaded], start=device + 1):
        tier = Tier.DISK if key in request.from_disk else Tier.HOST
        end = min(at * block_tokens, device * block_tokens + loaded_tokens, most)
        if runs and runs[-1][1] == tier.value:
            runs.pop()
        runs.append((end, tier.value))
    return PromptSources(tuple(runs), explain_computing(request, device + loaded, index))


def explain_computing(
    request: TrackedRequest, cached_blocks: int, index: BlockIndex[B]
) -> dict[str, Reason]:
    """Tell for each document that is not cached as a whole why it is computed."""
    reasons: dict[str, Reason] = {}
    nodes, at, begin = iter(request.nodes), 0, 0
    for cut in request.prompt.cuts:
        first: Node | None = None  # the first node of the cut that is not cached as a whole
        while begin < cut.end and (node := next(nodes, None)) is not None:
            begin += node.blocks
            if first is None and begin > cached_blocks:
                first, at = node, begin - node.blocks
        if first is not None:
            offered = max(first.resident) + at > cached_blocks
            for document in cut.documents:
                reasons[document] = (
                    Reason.QUICKER if offered else _why_absent(first, document, request, index)
                )
    return reasons


def _why_absent(node: Node, document: str, request: TrackedRequest, index: BlockIndex[B]) -> Reason:
    if node.uses:
        return Reason.EVICTED
    elsewhere = index.has_elsewhere(document, frozenset(request.nodes))
    return Reason.OTHER_CONTEXT if elsewhere else Reason.FIRST_TIME
