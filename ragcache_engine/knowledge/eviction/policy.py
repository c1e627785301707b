"""The interface between the knowledge tree and an eviction policy. One instance serves one tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ragcache_engine.knowledge.node import Node


class EvictionPolicy(Protocol):
    """Chooses victims among the leaves of a tier. A policy reads nodes and changes none.

    The tree tells the policy what happens to nodes. About each node it calls `entered` first and `left`
    last. In between it calls `used` for each completed use, and `became_evictable` whenever the node
    can be evicted: nobody pins it, and no child of it has blocks in the tier. For the use that brought
    the node into the tier it calls `first_use_completed` instead of `used`. Only `seen` is also called
    for nodes that have no blocks in the tier.
    """

    def seen(self, node: Node) -> None:
        """Note that a use of a node, in the tier or not, was completed. Called before `used`."""

    def entered(self, node: Node) -> None:
        """Note that the node's first block came into the tier. The use that needs it may still run."""

    def used(self, node: Node) -> None:
        """Note a completed use of a node with blocks in the tier. Its uses and cost are up to date."""

    def first_use_completed(self, node: Node) -> None:
        """Note that the use which brought the node into the tier was completed."""

    def became_evictable(self, node: Node) -> None:
        """Note that the node can be evicted from now on. No call tells the policy when this ends."""

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        """Choose the node to evict next, one for which `evictable` is true; None if there is none."""

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        """Return whether the newcomer's blocks are worth more than the victim's. Most policies say yes.

        in_use: whether a running request uses the newcomer; that use is not recorded yet.
        """

    def evicted(self, node: Node) -> None:
        """Note that some or all blocks of this node were evicted to make room. Called before `left`."""

    def left(self, node: Node) -> None:
        """Note that the node's last block left the tier, for any reason."""
