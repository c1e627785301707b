"""A question waits until the engine that was asked before is at rest; others' work is found out."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import namedtuple
from itertools import accumulate, chain, repeat

import psutil
import pytest

from ragcache_cli import processor_time
from ragcache_cli.processor_time import LIMIT_S, LOOK_S, OthersWatch, children_s, wait_for_rest


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(processor_time.time, "sleep", sleep)
    monkeypatch.setattr(processor_time.time, "monotonic", lambda: clock[0])
    return slept


def taking(*shares: float) -> list[float]:
    return list(accumulate(share * LOOK_S for share in shares))


def test_one_look_is_enough_where_nobody_computes(slept: list[float]):
    wait_for_rest(lambda: 7.0)
    assert len(slept) == 1


def test_it_waits_for_a_worker_that_spins(slept: list[float]):
    times = chain([0.0], taking(1.0, 1.0, 0.9), repeat(taking(1.0, 1.0, 0.9)[-1]))
    wait_for_rest(lambda: next(times))
    assert len(slept) == 4


def test_a_program_that_never_rests_is_not_waited_for_longer_than_the_limit(slept: list[float]):
    times = accumulate(repeat(1.0))
    wait_for_rest(lambda: next(times))
    assert LIMIT_S <= sum(slept) < LIMIT_S + 2 * LOOK_S


def compute() -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    time.sleep(60)


def test_the_time_of_the_processes_below_this_one_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    before_s = children_s()
    child = multiprocessing.get_context("spawn").Process(target=compute, daemon=True)
    child.start()
    try:
        while children_s() < before_s + 0.1:
            assert child.is_alive()
            time.sleep(0.05)
    finally:
        child.terminate()
        child.join()
    assert children_s() < before_s + 0.1


def test_what_others_take_is_told_and_what_this_program_takes_is_not(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
):
    machine, own = [50.0], [20.0]
    monkeypatch.setattr(processor_time, "machine_s", lambda: machine[0])
    monkeypatch.setattr(processor_time, "own_s", lambda: own[0])
    watch = OthersWatch()
    processor_time.time.sleep(10.0)
    machine[0] += 9.0
    own[0] += 6.0
    assert watch.share() == pytest.approx(0.3)


def test_time_that_other_machines_took_and_cores_that_are_not_ours_are_no_programs(
    monkeypatch: pytest.MonkeyPatch,
):
    times = namedtuple("times", "user system idle steal guest")
    cores = [times(5.0, 1.0, 90.0, 4.0, 2.0), times(7.0, 0.0, 93.0, 0.0, 0.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert processor_time.machine_s() == 6.0 + 7.0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert processor_time.machine_s() == 6.0


def test_the_machine_takes_at_least_what_this_program_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    before_s = processor_time.machine_s()
    own_before_s = processor_time.own_s()
    compute_here_s = time.process_time() + 0.2
    while time.process_time() < compute_here_s:
        pass
    own_s = processor_time.own_s() - own_before_s
    assert own_s > 0.15
    assert processor_time.machine_s() - before_s > own_s / 2  # either is counted in ticks
