"""W-TinyLFU: newcomers enter a small window, and stay only if used more often than the node they replace.

Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission policy" (ACM TOS 2017).
Adapted to a tree: the tree counts uses itself, within its frequency window, so no sketch is needed; parts
are measured in blocks; a node with children in the tier is set aside until it is a leaf. When a node must
be evicted, the window's oldest is compared with the main part's oldest: the one used less is the victim.
"""

from __future__ import annotations

from collections.abc import Callable

from peers.leaf_queue import LeafQueue, Queued
from ragcache_engine.knowledge.node import Node

WINDOW_SHARE = 0.01
"""Share of the tier's blocks for the window of newcomers."""

PROTECTED_SHARE = 0.8
"""Share of the main part's blocks for nodes used again since they came into it."""


class WTinyLFU(Queued):
    """A window in order of use, then a main part: a segmented LRU that admits nodes by frequency."""

    def __init__(self) -> None:
        self._window, self._probation, self._protected = LeafQueue(), LeafQueue(), LeafQueue()
        self._needed_room = False  # whether the next newcomer takes a victim's place

    def entered(self, node: Node) -> None:
        if not self._needed_room:
            self._shrink_window()
        self._window.append(node)
        self._needed_room = False

    def used(self, node: Node) -> None:
        if node in self._window:
            self._window.move_to_end(node)
        elif node in self._protected:
            self._protected.move_to_end(node)
        else:
            self._probation.remove(node)
            self._protected.append(node)

    def became_evictable(self, node: Node) -> None:
        for part in (self._window, self._probation, self._protected):
            part.became_evictable(node)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        self._needed_room = True
        self._demote(evictable)
        while True:
            resident = self._probation.first(evictable) or self._protected.first(evictable)
            if resident and self._window.blocks <= WINDOW_SHARE * self._blocks:
                return resident
            candidate = self._window.first(evictable)
            if candidate is None or resident is None:
                return candidate or resident
            if candidate.uses <= resident.uses:
                return candidate
            self._window.remove(candidate)
            self._probation.append(candidate)

    def left(self, node: Node) -> None:
        for part in (self._window, self._probation, self._protected):
            if node in part:
                part.remove(node)

    @property
    def _blocks(self) -> int:
        return self._window.blocks + self._probation.blocks + self._protected.blocks

    def _shrink_window(self) -> None:
        """Move the window's oldest nodes to the main part. While there is room, compare none of them."""
        while self._window.blocks > WINDOW_SHARE * self._blocks:
            oldest = self._window.oldest()
            if oldest is None:
                return
            self._window.remove(oldest)
            self._probation.append(oldest)

    def _demote(self, evictable: Callable[[Node], bool]) -> None:
        """Keep the protected nodes within their share: move the oldest of them back to probation."""
        protected, probation = self._protected, self._probation
        while protected.blocks > PROTECTED_SHARE * (protected.blocks + probation.blocks):
            oldest = protected.first(evictable)
            if oldest is None:
                return
            protected.remove(oldest)
            probation.append(oldest)
