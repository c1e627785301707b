"""Looks at an engine or a server at intervals, however many pages are open."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from ragcache_engine.dashboard.history import History, Interval
from ragcache_engine.dashboard.observation import Observation, Observer
from ragcache_engine.errors import EngineClosed
from ragcache_engine.tiers.counters import TierCounters

logger = logging.getLogger(__name__)

VIEWED_S = 10.0
"""A page that has not asked for so long is closed, and the tree is not looked at for it."""


class Watcher:
    """Looks on a thread of its own. Counters always; the tree only while somebody views the page.

    every_s: seconds between two looks.
    """

    def __init__(
        self, observer: Observer, every_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = observer.name
        self._observer = observer
        self._every_s = every_s
        self._now = now
        self._history = History()
        self._latest = Observation(time.time(), TierCounters())
        self._viewed_s: float | None = None
        self._has_ended = threading.Event()
        self._has_viewer = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ragcache-dashboard", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Look no more. May be called again, and from the watcher's own thread."""
        self._has_ended.set()
        self._has_viewer.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10.0)

    def view(self) -> tuple[Observation, tuple[Interval, ...]]:
        """Return what was seen last, and the history; note that somebody views it."""
        is_new = not self._is_viewed()
        self._viewed_s = self._now()
        if is_new:
            self._has_viewer.set()  # look at the tree now
        return self._latest, self._history.intervals()

    def look(self) -> None:
        """Look once. The watcher's thread does this; tests may."""
        seen = self._observer.observe(with_tree=self._is_viewed())
        if seen.problem and not seen.counters.ended:
            # Nobody answered: what was seen last stays, with its time.
            self._latest = replace(self._latest, problem=seen.problem)
            return
        self._history.add(seen)
        self._latest = seen

    def _is_viewed(self) -> bool:
        return self._viewed_s is not None and self._now() - self._viewed_s < VIEWED_S

    def _run(self) -> None:
        while not self._has_ended.is_set():
            try:
                self.look()
            except EngineClosed:
                return
            except Exception:  # the page goes on with what it has
                logger.exception("the dashboard could not look; please report this")
            self._has_viewer.wait(self._every_s)
            self._has_viewer.clear()
