"""Waits until engines that were asked are at rest, so that they take no time from the one asked next."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

LOOK_S, SHARE, LIMIT_S = 0.2, 0.1, 5.0


def wait_for_rest(taken_s: Callable[[], float]) -> None:
    """Wait until less than SHARE of a core is taken, at most LIMIT_S.

    On a CPU, vLLM's worker waits for its next step without sleeping, for a second.
    taken_s: returns the processor time that the engines have taken so far, in seconds.
    """
    last_s = time.monotonic() + LIMIT_S
    before_s = taken_s()
    while time.monotonic() < last_s:
        time.sleep(LOOK_S)
        now_s = taken_s()
        if now_s - before_s < SHARE * LOOK_S:
            return
        before_s = now_s


def children_cpu_s() -> float:
    """Return the processor time that the living processes below this one have taken, in seconds."""
    return sum(map(_cpu_s, psutil.Process().children(recursive=True)))


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
