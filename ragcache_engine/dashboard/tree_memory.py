"""Remembers the knowledge tree as it was last seen, so that an idle model is left in peace."""

from __future__ import annotations

import time
from collections.abc import Callable

from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

IDLE_LOOK_S = 60.0
"""While nothing happens, the tree is looked at this seldom: each look costs a step of the model, after
which a worker of vLLM's spins for a second."""


class TreeMemory:
    """Says whether the tree may have changed since somebody looked at it.

    now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.tree: TreeSnapshot | None = None
        self._now = now
        self._looked_s = self._changed_s = 0.0
        self._counts: object = None

    def is_fresh(self, counts: object) -> bool:
        """Return whether the remembered tree can be shown once more.

        counts: anything that differs once a request has begun or ended, but not for a look at the tree,
          whoever takes it.
        """
        if counts != self._counts:
            self._counts, self._changed_s = counts, self._now()
        tree = self.tree
        if tree is None or tree.age_s is None or tree.running:
            return False
        is_recent = self._now() - self._looked_s < IDLE_LOOK_S
        # A large tree is seen over several looks: what they saw may have begun before the change.
        return is_recent and self._looked_s - tree.age_s >= self._changed_s

    def remember(self, tree: TreeSnapshot | None) -> None:
        """Take the tree that was just seen, None if it could not be."""
        self.tree, self._looked_s = tree, self._now()
