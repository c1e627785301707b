"""Every eviction policy, the engine's and its peers, and a cache small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from peers import PEERS

from ragcache_engine.knowledge import (
    POLICIES,
    DocumentCache,
    EvictionPolicy,
    Node,
    Segment,
    policy_of_tiers,
)

EVERY_POLICY: dict[str, Callable[[], EvictionPolicy]] = {**POLICIES, **PEERS}


def policy_for_tree(name: str) -> Callable[[], EvictionPolicy]:
    """Return a function that makes the policy of this name for each tier of one tree."""
    return PEERS.get(name) or policy_of_tiers(name)


class Flat:
    """Documents of one token, one a request."""

    def __init__(self, policy: str | Callable[[], EvictionPolicy], capacity: int) -> None:
        make = EVERY_POLICY[policy] if isinstance(policy, str) else policy
        self.cache = DocumentCache(capacity, make, block_tokens=1)

    @property
    def policy(self) -> EvictionPolicy:
        return self.cache.policy

    def ask(self, names: Iterable[str], prefill_s: float = 1.0) -> Flat:
        for name in names:
            nodes = self.cache.use(self.cache.match([Segment(name, 1)]), prefill_s)
            self.cache.admit(nodes)
        return self

    def held(self) -> set[str]:
        return {node.segment.name for node in self.nodes() if node.resident[0]}

    def nodes(self) -> list[Node]:
        return [node for node in self.cache.tree.root.downwards() if node.parent]
