"""An idle model is left in peace: a tree that was seen is shown again until it may have changed."""

from __future__ import annotations

import pytest

from ragcache_engine.dashboard.tree_memory import IDLE_LOOK_S, NODES_A_LOOK, TreeMemory
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

TREE = TreeSnapshot(nodes=1)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> TreeMemory:
    memory = TreeMemory(clock)
    memory.remember(TREE, (3, 0))
    return memory


def test_a_tree_that_nobody_has_seen_is_not_fresh():
    assert not TreeMemory().is_fresh(None, 0)


@pytest.mark.parametrize("running", [0, None])
def test_it_is_fresh_while_nothing_happens(memory: TreeMemory, running: int | None):
    assert memory.is_fresh((3, 0), running)


def test_it_is_not_fresh_once_a_request_has_ended(memory: TreeMemory):
    assert not memory.is_fresh((4, 0), 0)


def test_it_is_not_fresh_while_a_request_runs(memory: TreeMemory):
    assert not memory.is_fresh((3, 0), 1)


def test_it_is_looked_at_again_after_a_minute(memory: TreeMemory, clock: Clock):
    clock.now_s += IDLE_LOOK_S
    assert not memory.is_fresh((3, 0), 0)


def test_a_look_that_failed_leaves_nothing_to_show(memory: TreeMemory):
    memory.remember(None, (3, 0))
    assert not memory.is_fresh((3, 0), 0)


def test_a_tree_too_large_for_one_look_is_looked_at_until_all_is_seen(memory: TreeMemory):
    memory.remember(TreeSnapshot(nodes=NODES_A_LOOK + 1), (3, 0))
    assert not memory.is_fresh((3, 0), 0)
