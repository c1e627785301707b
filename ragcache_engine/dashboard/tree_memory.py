"""Remembers the knowledge tree as it was last seen, so that an idle model is left in peace."""

from __future__ import annotations

import time
from collections.abc import Callable

from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

IDLE_LOOK_S = 60.0
"""While nothing happens, the tree is looked at this seldom: each look costs a step of the model, after
which a worker of vLLM's spins for a second."""

NODES_A_LOOK = 5_000
"""A look at a larger tree may end before it has seen all nodes: then the next look goes on."""


class TreeMemory:
    """Says whether the tree may have changed since somebody looked at it.

    now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.tree: TreeSnapshot | None = None
        self._now = now
        self._looked_s = 0.0
        self._counts_then: object = None

    def is_fresh(self, counts: object, running: int | None) -> bool:
        """Return whether the remembered tree can be shown once more.

        counts: anything that differs once a request has ended, but not for a look at the tree.
        running: how many requests run; None if nobody knows.
        """
        if self.tree is None or self.tree.nodes > NODES_A_LOOK:
            return False
        is_recent = self._now() - self._looked_s < IDLE_LOOK_S
        return is_recent and not running and counts == self._counts_then

    def remember(self, tree: TreeSnapshot | None, counts: object) -> None:
        """Take the tree that was just seen, None if it could not be; counts: as they are with it."""
        self.tree, self._counts_then, self._looked_s = tree, counts, self._now()
