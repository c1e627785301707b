"""A model is left in peace: a tree that was seen is shown again until it may have changed."""

from __future__ import annotations

import pytest

from ragcache_engine.dashboard.tree_memory import BUSY_LOOK_S, IDLE_LOOK_S, REST_S, TreeMemory
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot

TREE = TreeSnapshot(nodes=1, age_s=0.0)
THREE, FOUR = "three requests", "four requests"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> TreeMemory:
    """One that has seen the tree after three requests."""
    memory = TreeMemory(clock)
    assert not memory.is_fresh(THREE, 0)
    memory.remember(TREE)
    return memory


def test_a_tree_that_nobody_has_seen_is_not_fresh():
    assert not TreeMemory().is_fresh(None, 0)


@pytest.mark.parametrize("running", [0, None])
def test_it_is_fresh_while_nothing_happens(memory: TreeMemory, clock: Clock, running: int | None):
    clock.now_s += IDLE_LOOK_S / 2
    assert memory.is_fresh(THREE, running)
    clock.now_s += IDLE_LOOK_S / 2
    assert not memory.is_fresh(THREE, running)


def test_it_is_looked_at_again_once_things_have_come_to_rest_after_a_change(
    memory: TreeMemory, clock: Clock
):
    clock.now_s += 1
    assert memory.is_fresh(FOUR, 0)
    clock.now_s += REST_S
    assert not memory.is_fresh(FOUR, 0)
    memory.remember(TREE)
    clock.now_s += REST_S
    assert memory.is_fresh(FOUR, 0)


def test_while_requests_come_and_go_it_is_looked_at_seldom(memory: TreeMemory, clock: Clock):
    looks = []
    for second in range(40):
        clock.now_s += 1
        if not memory.is_fresh(f"{second} requests", second % 2):
            memory.remember(TREE)
            looks.append(second)
    assert looks == [9, 19, 29, 39]
    assert BUSY_LOOK_S == 10.0


def test_a_long_answer_is_no_rest(memory: TreeMemory, clock: Clock):
    clock.now_s += 1
    assert memory.is_fresh(FOUR, 1)
    clock.now_s += REST_S
    assert memory.is_fresh(FOUR, 1)
    clock.now_s += BUSY_LOOK_S
    assert not memory.is_fresh(FOUR, 1)


def test_a_tree_that_was_seen_while_a_request_ran_is_looked_at_again(
    memory: TreeMemory, clock: Clock
):
    memory.remember(TreeSnapshot(running=1, age_s=0.0))
    clock.now_s += REST_S
    assert not memory.is_fresh(THREE, 0)


def test_a_look_that_failed_leaves_nothing_to_show(memory: TreeMemory):
    memory.remember(None)
    assert not memory.is_fresh(THREE, 0)


def test_an_idle_large_tree_is_looked_at_until_all_is_seen_as_it_is_since_the_change(
    memory: TreeMemory, clock: Clock
):
    clock.now_s += 1
    assert memory.is_fresh(FOUR, 0)
    clock.now_s += REST_S
    for age_s in (None, REST_S + 1):  # not complete yet; complete, but begun before the change
        memory.remember(TreeSnapshot(age_s=age_s))
        assert not memory.is_fresh(FOUR, 0)
    memory.remember(TreeSnapshot(age_s=REST_S))
    assert memory.is_fresh(FOUR, 0)
