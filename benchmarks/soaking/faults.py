"""What goes wrong during a soak: killed processes, flipped bytes, a full disk."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

FILL_BYTES = 1 << 20
MODEL_PROCESSES = ("EngineCore", "Worker")


class Faults:
    """Makes faults at random moments in a thread of its own, and counts them by name in `made`.

    folder: the disk cache. can_fill: whether the folder's file system is small enough to be filled.
    every_s: by the fault's name, how many seconds lie between two of them on average; absent: never.
    answered: returns how many requests have been answered. A process is killed only if `between_kills`
      have been since the one before: a request that two deaths hit fails, as is promised.
    """

    def __init__(
        self,
        folder: Path,
        every_s: dict[str, float],
        *,
        can_fill: bool,
        seed: int,
        answered: Callable[[], int] = lambda: 0,
        between_kills: int = 0,
    ) -> None:
        self.made: Counter[str] = Counter()
        self._answered, self._between_kills = answered, between_kills
        self._answered_at_kill = 0
        self._folder = folder
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        makers: dict[str, Callable[[], bool]] = {
            "kill": self._kill_a_process,
            "flip": self._flip_a_byte,
            "fill": self._fill_the_disk,
        }
        wanted = {
            name: mean for name, mean in every_s.items() if mean and (name != "fill" or can_fill)
        }
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, makers[name], mean), daemon=True)
            for name, mean in wanted.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and undo what lasts."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, name: str, make: Callable[[], bool], mean_s: float) -> None:
        # Between half and one and a half of the mean: each fault comes, however short the run.
        while not self._stop.wait(self._dice.uniform(0.5, 1.5) * mean_s):
            if make():
                self.made[name] += 1

    def _kill_a_process(self) -> bool:
        """Kill -9 one of the processes in which vLLM runs for this process."""
        if self._answered() - self._answered_at_kill < self._between_kills:
            return False
        running = [
            process
            for process in model_processes()
            if any(part in process.name() for part in MODEL_PROCESSES)
        ]
        if not running:
            return False
        with suppress(psutil.NoSuchProcess):
            self._dice.choice(running).send_signal(signal.SIGKILL)
        self._answered_at_kill = self._answered()
        return True

    def _flip_a_byte(self) -> bool:
        """Turn one byte of a finished file over, where it lies."""
        files = sorted(self._folder.rglob("*.kv"))
        if not files:
            return False
        try:
            with self._dice.choice(files).open("r+b") as file:
                at = self._dice.randrange(max(1, os.fstat(file.fileno()).st_size))
                file.seek(at)
                (byte,) = file.read(1) or b"\0"
                file.seek(at)
                file.write(bytes([byte ^ 0xFF]))
        except OSError:  # evicted meanwhile
            return False
        return True

    def _fill_the_disk(self) -> bool:
        """Take all room of the file system for some seconds."""
        filler = self._folder.parent / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(FILL_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        self._stop.wait(self._dice.uniform(3, 10))
        filler.unlink(missing_ok=True)
        return True


def model_processes() -> list[psutil.Process]:
    """Find the living processes below this one that belong to vLLM; not those of a second engine."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            # Python's own helper for shared memory ends with this process.
            if "soak.py" not in command and "resource_tracker" not in command:
                found += [child, *child.children(recursive=True)]
    return found


@contextmanager
def small_disk(parent: Path, size_bytes: int) -> Iterator[bool]:
    """Mount a file system of this size at `parent`, if this user may. Yields whether it is there."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(parent)],
        capture_output=True,
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(parent)], check=True)
