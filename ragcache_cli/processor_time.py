"""Measures who takes the processors while engines are asked, and waits until nobody does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it comes with vLLM: `ragcache_cli.extras` names what is missing without it
    import psutil

LOOK_S, SHARE, LIMIT_S = 0.1, 0.3, 5.0


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


def machine_s() -> float:
    """Return the processor time that all programs have taken on this process's cores, in seconds.

    A container may share a machine whose other cores it never gets.
    """
    import psutil

    of_cores = psutil.cpu_times(percpu=True)
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if mine and mine[-1] < len(of_cores):
        of_cores = [of_cores[core] for core in mine]
    return sum(map(_taken_s, of_cores))


def _taken_s(times: Any) -> float:
    # Linux counts a guest's time in `user` and `nice` already. Stolen time went to other machines.
    free = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in free))


def own_s() -> float:
    """Return the processor time of this process and the living ones below it, in seconds."""
    import psutil

    return _process_s(psutil.Process()) + children_s()


def children_s() -> float:
    """Return the processor time of the living processes below this one, in seconds."""
    import psutil

    return sum(map(_process_s, psutil.Process().children(recursive=True)))


def _process_s(process: psutil.Process) -> float:
    import psutil

    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class OthersWatch:
    """Tells how much of a core programs other than this one have taken since the watch began."""

    def __init__(self) -> None:
        self._began_s, self._others_s = time.monotonic(), machine_s() - own_s()

    def share(self) -> float:
        """Return the share of one core, on average: 2.0 means two cores."""
        taken_s = machine_s() - own_s() - self._others_s
        return max(0.0, taken_s / max(time.monotonic() - self._began_s, 1e-3))
