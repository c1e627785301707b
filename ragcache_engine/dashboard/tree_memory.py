"""Remembers the knowledge tree as it was last seen, so that few looks disturb the model.

A look at the tree is a request of one token: it costs the model a step, after which an idle worker of
vLLM's spins for a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

IDLE_LOOK_S = 60.0
"""While nothing happens, the tree is looked at this seldom."""

BUSY_LOOK_S = 10.0
"""While requests come and go, the tree is looked at this seldom: then looks take less than 1% of the time
of a small model on two cores, where one takes up to 70 ms."""

REST_S = 3.0
"""So long after the last change nothing happens any more."""


class TreeMemory:
    """Says whether the tree as it was last seen can be shown once more.

    now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.tree: TreeSnapshot | None = None
        self._now = now
        self._looked_s = self._changed_s = 0.0
        self._counts: object = None

    def is_fresh(self, counts: object, running: int | None) -> bool:
        """Return whether nobody need look at the tree now.

        counts: anything that differs once a request has begun or ended, but not for a look at the tree,
          whoever takes it. running: how many requests run; None if nobody knows.
        """
        now = self._now()
        if counts != self._counts:
            self._counts, self._changed_s = counts, now
        if self.tree is None:
            return False
        since_look_s = now - self._looked_s
        if self._is_up_to_date(self.tree):
            return since_look_s < IDLE_LOOK_S
        is_busy = bool(running) or now - self._changed_s < REST_S
        return is_busy and since_look_s < BUSY_LOOK_S

    def remember(self, tree: TreeSnapshot | None) -> None:
        """Take the tree that was just seen, None if it could not be."""
        self.tree, self._looked_s = tree, self._now()

    def _is_up_to_date(self, tree: TreeSnapshot) -> bool:
        """Return whether all of it was seen since the last change, while nothing ran."""
        if tree.age_s is None or tree.running:
            return False
        # A large tree is seen over several looks: they may have begun before the change.
        return self._looked_s - tree.age_s >= self._changed_s
