"""An idle model is left in peace: a tree that was seen is shown again until it may have changed."""

from __future__ import annotations

import pytest

from ragcache_engine.dashboard.tree_memory import IDLE_LOOK_S, TreeMemory
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

TREE = TreeSnapshot(nodes=1, age_s=0.0)
COUNTS = ("three requests", "none runs")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> TreeMemory:
    """One that has seen the tree with these counts."""
    memory = TreeMemory(clock)
    assert not memory.is_fresh(COUNTS)
    memory.remember(TREE)
    return memory


def test_a_tree_that_nobody_has_seen_is_not_fresh():
    assert not TreeMemory().is_fresh(None)


def test_it_is_fresh_while_nothing_happens(memory: TreeMemory, clock: Clock):
    clock.now_s += IDLE_LOOK_S / 2
    assert memory.is_fresh(COUNTS)
    assert memory.is_fresh(COUNTS)


def test_it_is_not_fresh_once_the_counts_have_changed(memory: TreeMemory, clock: Clock):
    clock.now_s += 1
    assert not memory.is_fresh("four requests")
    assert not memory.is_fresh("four requests")
    memory.remember(TREE)
    assert memory.is_fresh("four requests")


def test_it_is_not_fresh_if_a_request_ran_when_it_was_seen(memory: TreeMemory):
    memory.remember(TreeSnapshot(running=1, age_s=0.0))
    assert not memory.is_fresh(COUNTS)


def test_it_is_looked_at_again_after_a_minute(memory: TreeMemory, clock: Clock):
    clock.now_s += IDLE_LOOK_S
    assert not memory.is_fresh(COUNTS)


def test_a_look_that_failed_leaves_nothing_to_show(memory: TreeMemory):
    memory.remember(None)
    assert not memory.is_fresh(COUNTS)


def test_a_large_tree_is_looked_at_until_all_is_seen_as_it_is_since_the_change(
    memory: TreeMemory, clock: Clock
):
    clock.now_s += 1
    assert not memory.is_fresh("four requests")
    for age_s in (None, 2.5):  # not complete yet; complete, but begun before the change
        clock.now_s += 1
        memory.remember(TreeSnapshot(age_s=age_s))
        assert not memory.is_fresh("four requests")
    clock.now_s += 2
    memory.remember(TreeSnapshot(age_s=3.0))
    assert memory.is_fresh("four requests")
