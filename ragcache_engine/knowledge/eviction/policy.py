"""The door between the tree and what decides who leaves. One instance serves one tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ragcache_engine.knowledge.node import Node


class EvictionPolicy(Protocol):
    """Chooses victims among the leaves of a tier. It reads nodes and changes none.

    The tree calls `entered` before anything else about a node, and `left` last. In between it calls
    `used` for each completed use (`brought` instead, for the use it came for, if that was not over
    yet) and `exposed` whenever the node has become evictable: it has no
    child in the tier and nobody pins it. `seen` alone also tells of nodes that are not in the tier.
    """

    def seen(self, node: Node) -> None:
        """A use was completed, whether the node has blocks in the tier or not; before `used`."""

    def entered(self, node: Node) -> None:
        """Its first block has come into the tier; the use it came for may not be counted yet."""

    def used(self, node: Node) -> None:
        """A use of a node with blocks in the tier was completed; uses and cost are up to date."""

    def brought(self, node: Node) -> None:
        """The use that brought the node into the tier was completed. It is no second one."""

    def exposed(self, node: Node) -> None:
        """The node may be evicted from now on. It may stop to be so without notice."""

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        """The node to evict next, one for which `evictable` holds; None if there is none."""

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        """Whether the newcomer's blocks are worth more here than the victim's. Most say yes.

        in_use: a request that is not over yet uses the newcomer, so that this use is not counted yet.
        """

    def evicted(self, node: Node) -> None:
        """Blocks of this node, perhaps not all, made room for others."""

    def left(self, node: Node) -> None:
        """Its last block has left the tier, for whatever reason."""
