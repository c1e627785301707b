"""Watches what a process holds while it runs, and what it leaves behind."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from soaking.faults import model_processes

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """What this process and vLLM's processes below it hold at one moment. seconds: since the start."""

    seconds: float
    requests: int
    host_mib: int
    model_mib: int
    threads: int
    files: int
    processes: int
    shared_memory: int
    disk_files: int


def sample(begun: float, requests: int, folder: Path) -> Sample:
    """Measure now. requests: how many were made so far. folder: the disk cache."""
    this, model = psutil.Process(), model_processes()
    model_bytes = 0
    for process in model:
        with suppress(psutil.Error):
            model_bytes += process.memory_info().rss
    return Sample(
        seconds=round(time.monotonic() - begun, 1),
        requests=requests,
        host_mib=this.memory_info().rss // MIB,
        model_mib=model_bytes // MIB,
        threads=this.num_threads(),
        files=this.num_fds(),
        processes=len(model),
        shared_memory=len(list(SHARED_MEMORY.iterdir())) if SHARED_MEMORY.is_dir() else 0,
        disk_files=sum(1 for _ in folder.rglob("*.kv")),
    )


class Watch:
    """Takes a sample every `every_s` seconds in a thread of its own."""

    def __init__(self, begun: float, folder: Path, every_s: float, requests: Any) -> None:
        self.samples: list[Sample] = []
        self._begun, self._folder, self._every_s, self._requests = begun, folder, every_s, requests
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            with suppress(psutil.Error, OSError):  # a process or file went while it was looked at
                self.samples.append(sample(self._begun, self._requests(), self._folder))


def wait_for_end(seconds: float) -> int:
    """Wait until vLLM's processes below this one have ended. Returns how many are left."""
    deadline = time.monotonic() + seconds
    while model_processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    return len(model_processes())
