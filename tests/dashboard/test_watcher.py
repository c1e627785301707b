"""The watcher looks at the tree only for viewers, and whatever happens to what it looks at."""

from __future__ import annotations

import threading

import pytest

from ragcache_engine import EngineClosed
from ragcache_engine.dashboard.observation import Observation
from ragcache_engine.dashboard.watcher import VIEWED_S, Watcher
from ragcache_engine.tiers.counters import TierCounters


class Scripted:
    """An observer that notes how it was asked."""

    name = "scripted"

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[bool] = []
        self.error = error
        self.was_asked = threading.Event()
        self.problem = ""
        self.has_figures = False

    def observe(self, *, with_tree: bool) -> Observation:
        self.asked.append(with_tree)
        self.was_asked.set()
        if self.error:
            raise self.error
        at = len(self.asked)
        is_blank = self.problem and not self.has_figures
        counters = TierCounters() if is_blank else TierCounters(ended=at)
        return Observation(float(at), counters, problem=self.problem)


def test_the_tree_is_looked_at_only_while_somebody_views_the_page():
    observer, clock = Scripted(), [0.0]
    watcher = Watcher(observer, 60.0, now=lambda: clock[0])
    watcher.look()
    watcher.view()
    watcher.look()
    clock[0] = VIEWED_S + 1
    watcher.look()
    assert observer.asked == [False, True, False]
    assert len(watcher.view()[1]) == 2


def test_a_closed_engine_ends_the_watcher():
    watcher = Watcher(Scripted(EngineClosed("gone")), 0.01)
    watcher.start()
    watcher._thread.join(10)
    assert not watcher._thread.is_alive()
    watcher.close()


def test_a_mistake_of_ours_does_not_end_it(caplog: pytest.LogCaptureFixture):
    observer = Scripted(ZeroDivisionError("ours"))
    watcher = Watcher(observer, 0.001)
    watcher.start()
    while len(observer.asked) < 3:
        observer.was_asked.wait(10)
    watcher.close()
    assert "please report this" in caplog.text
    assert not watcher._thread.is_alive()


def test_what_was_seen_last_stays_while_nobody_answers_and_keeps_its_time():
    observer = Scripted()
    watcher = Watcher(observer, 60.0)
    watcher.look()
    observer.problem = "nobody answers"
    watcher.look()
    seen, intervals = watcher.view()
    assert (seen.at, seen.counters.ended, seen.problem) == (1.0, 1, "nobody answers")
    observer.problem = ""
    watcher.look()
    assert watcher.view()[0] == Observation(3.0, TierCounters(ended=3))
    assert len(intervals) == 0


def test_figures_without_a_tree_are_new_figures_all_the_same():
    observer = Scripted()
    watcher = Watcher(observer, 60.0)
    observer.problem = "the server shows no tree"
    observer.has_figures = True
    watcher.look()
    assert watcher.view()[0].at == 1.0


def test_a_new_viewer_does_not_wait_for_the_next_interval():
    observer = Scripted()
    watcher = Watcher(observer, 3600.0)
    watcher.start()
    observer.was_asked.wait(10)
    observer.was_asked.clear()
    watcher.view()
    assert observer.was_asked.wait(10)
    watcher.close()
    assert observer.asked[-1] is True
