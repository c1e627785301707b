"""Reads are given out in the order in which requests need them, and each once."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.tiers.disk.read_queue import ReadQueue


def taken(queue: ReadQueue[str]) -> list[str]:
    """What is given out until the queue is empty."""
    queue.close()
    given_out = []
    while (read := queue.take()) is not None:
        given_out.append(read)
    return given_out


def queue_of(*names: str, urgent: str = "") -> ReadQueue[str]:
    queue: ReadQueue[str] = ReadQueue()
    for name in names:
        queue.put(name, name, is_urgent=name in urgent)
    return queue


def test_urgent_reads_go_first_and_each_kind_in_the_order_of_arrival():
    assert taken(queue_of(*"abcde", urgent="ce")) == list("ceabd")


def test_a_read_that_becomes_urgent_goes_behind_those_that_are():
    queue = queue_of(*"abcd", urgent="d")
    queue.hasten("c")
    queue.hasten("unheard of")
    assert taken(queue) == list("dcab")


def test_a_read_is_taken_back_unless_it_has_begun():
    queue = queue_of("a", "b", "c", urgent="b")
    assert queue.take() == "b"
    assert not queue.cancel("b")
    assert queue.cancel("a")
    assert not queue.cancel("a")
    assert taken(queue) == ["c"]


def test_a_running_read_is_timed_until_its_thread_asks_again():
    queue = queue_of("a")
    assert queue.longest_running_s() == 0.0
    queue.take()
    assert queue.running == 1
    assert queue.longest_running_s() > 0.0
    assert taken(queue) == []
    assert queue.running == 0


def test_closing_wakes_every_thread_that_waits():
    queue: ReadQueue[str] = ReadQueue()
    threads = [threading.Thread(target=queue.take) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "hasten", "cancel"]), st.integers(0, 9), st.booleans())
    )
)
def test_no_read_is_lost_or_given_out_twice(steps: list[tuple[str, int, bool]]):
    queue: ReadQueue[str] = ReadQueue()
    waiting: set[str] = set()
    for step, number, urgent in steps:
        name = str(number)
        if step == "put" and name not in waiting:
            queue.put(name, name, is_urgent=urgent)
            waiting.add(name)
        elif step == "hasten":
            queue.hasten(name)
        elif step == "cancel":
            assert queue.cancel(name) == (name in waiting)
            waiting.discard(name)
        assert len(queue) == len(waiting)
    left = taken(queue)
    assert len(left) == len(waiting)
    assert set(left) == waiting
