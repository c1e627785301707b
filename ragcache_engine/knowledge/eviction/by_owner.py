"""Evicts among the nodes of all owners, or of one that has reached its quota."""

from __future__ import annotations

from collections.abc import Callable

from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.node import Node


class _Own:
    """An owner's nodes. nodes: how many have blocks in the tier."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.nodes = 0


class ByOwner(EvictionPolicy):
    """A policy for all nodes of a tier, and beside it one for those of each owner.

    make: makes these policies. Each looks at the nodes it is told of only, so that finding a victim among
    one owner's takes no longer where others have many. A node without an owner is in the first alone.
    """

    def __init__(self, make: Callable[[], EvictionPolicy]) -> None:
        self._make = make
        self._all = make()
        self._own: dict[str, _Own] = {}

    def victim_of(self, owner: str, evictable: Callable[[Node], bool]) -> Node | None:
        """Choose the owner's node to evict next; None if none of them is evictable."""
        own = self._own.get(owner)
        return None if own is None else own.policy.victim(evictable)

    def prefers_own(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        """Return what `prefers` does for two nodes of one owner."""
        own = self._policy_of(victim)
        return own is None or own.prefers(newcomer, victim, in_use=in_use)

    def seen(self, node: Node) -> None:
        self._all.seen(node)
        if own := self._policy_of(node):
            own.seen(node)

    def entered(self, node: Node) -> None:
        self._all.entered(node)
        if node.owner is not None:
            own = self._own.get(node.owner)
            if own is None:
                own = self._own[node.owner] = _Own(self._make())
            own.nodes += 1
            own.policy.entered(node)

    def used(self, node: Node) -> None:
        self._all.used(node)
        if own := self._policy_of(node):
            own.used(node)

    def first_use_completed(self, node: Node) -> None:
        self._all.first_use_completed(node)
        if own := self._policy_of(node):
            own.first_use_completed(node)

    def became_evictable(self, node: Node) -> None:
        self._all.became_evictable(node)
        if own := self._policy_of(node):
            own.became_evictable(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        return self._all.victim(evictable)

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        return self._all.prefers(newcomer, victim, in_use=in_use)

    def evicted(self, node: Node) -> None:
        self._all.evicted(node)

    def evicted_for_own(self, node: Node) -> None:
        """Note what `evicted` does of a node that made room for its owner: it tells others nothing."""
        if own := self._policy_of(node):
            own.evicted(node)

    def left(self, node: Node) -> None:
        self._all.left(node)
        if node.owner is not None:
            own = self._own[node.owner]
            own.policy.left(node)
            own.nodes -= 1
            if not own.nodes:
                del self._own[node.owner]

    def _policy_of(self, node: Node) -> EvictionPolicy | None:
        own = None if node.owner is None else self._own.get(node.owner)
        return None if own is None else own.policy
