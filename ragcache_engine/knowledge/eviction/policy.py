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
    the node into the tier it calls `first_use_completed` instead of `used`. `seen` alone also tells of
    nodes that have no blocks in the tier.
    """

    def seen(self, node: Node) -> None:
        """A use of the node was completed, whether it has blocks in the tier or not; before `used`."""

    def entered(self, node: Node) -> None:
        """The node's first block came into the tier; the use it came for may still run."""

    def used(self, node: Node) -> None:
        """A use of a node with blocks in the tier was completed; its uses and cost are up to date."""

    def first_use_completed(self, node: Node) -> None:
        """The use that brought the node into the tier was completed. It does not count as a second."""

    def became_evictable(self, node: Node) -> None:
        """The node can be evicted from now on. No call tells when that ends again."""

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        """Choose the node to evict next, one for which `evictable` is true; None if there is none."""

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        """Whether the newcomer's blocks are worth more here than the victim's. Most policies say yes.

        in_use: a running request uses the newcomer; that use is not recorded yet.
        """

    def evicted(self, node: Node) -> None:
        """Blocks of this node, perhaps not all, made room for others."""

    def left(self, node: Node) -> None:
        """The node's last block left the tier, for whatever reason."""
