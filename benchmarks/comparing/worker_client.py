"""The bench's side of a worker: start its process, give it orders, and measure what it uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from comparing.errors import BenchFailed
from comparing.systems import Sizes, System
from comparing.workload import Request

END_S = 60.0


class Worker:
    """A system in a process of its own. A context manager; leaving it ends the process.

    Orders block, and the worker carries out one at a time. An order that fails raises BenchFailed with
    the worker's own message. log: the file for the output of the process and its libraries.
    """

    def __init__(self, system: System, sizes: Sizes, log: Path) -> None:
        self.system, self._sizes, self._log = system, sizes, log
        self._children: list[psutil.Process] = []
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "comparing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )

    def begin_start(self) -> None:
        """Begin to start the engine; `wait_until_started` waits for it. Several may start at a time."""
        self._send(do="start", system=asdict(self.system), sizes=asdict(self._sizes))

    def wait_until_started(self) -> None:
        """Wait until the start that `begin_start` began has ended."""
        self._read_answer()

    def prepare(self, folder: Path, top_k: int) -> None:
        """See RunningSystem.prepare."""
        self._ask(do="prepare", folder=str(folder), top_k=top_k)

    def play(
        self, requests: Sequence[Request], at_once: int | None = None, *, ignore_eos: bool = True
    ) -> list[dict[str, Any]]:
        """See RunningSystem.play."""
        rows = [[one.question, one.at_s, one.max_tokens] for one in requests]
        answers: list[dict[str, Any]] = self._ask(
            do="play", requests=rows, at_once=at_once, ignore_eos=ignore_eos
        )
        return answers

    def warm(self, questions: Sequence[int]) -> dict[str, Any]:
        """See RunningSystem.warm."""
        warmed: dict[str, Any] = self._ask(do="warm", questions=list(questions))
        return warmed

    def clear(self) -> None:
        """See RunningSystem.clear."""
        self._ask(do="clear")

    def read_counters(self) -> dict[str, Any]:
        """See RunningSystem.read_counters."""
        counters: dict[str, Any] = self._ask(do="read_counters")
        return counters

    def cpu_s(self) -> float:
        """Measure the processor time its processes have taken since they began, in seconds."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(time.user + time.system for time in times)

    def memory_bytes(self) -> int:
        """Measure the memory of its processes, with shared pages counted once (proportional set size)."""
        total = 0
        for process in self._processes():
            try:
                total += process.memory_full_info().pss
            except (psutil.Error, AttributeError):
                continue
        return total

    def _processes(self) -> list[psutil.Process]:
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def _ask(self, **order: Any) -> Any:
        self._send(**order)
        return self._read_answer()

    def _send(self, **order: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._process_ended() from error

    def _read_answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise self._process_ended()
        answer = json.loads(line)
        if "error" in answer:
            raise BenchFailed(
                f"{self.system.name}: {answer['kind']}: {answer['error']} (its log: {self._log})"
            )
        return answer["ok"]

    def _process_ended(self) -> BenchFailed:
        return BenchFailed(
            f"{self.system.name}: its process ended by itself, often out of memory; its log is "
            f"{self._log}"
        )

    def begin_close(self) -> None:
        """Ask the process to end; `close` waits for it. Several may end at a time."""
        assert self._process.stdin
        if self._process.poll() is None and not self._process.stdin.closed:
            self._children = self._processes()[1:]
            with suppress(OSError):
                self._process.stdin.write('{"do": "close"}\n')
                self._process.stdin.close()

    def close(self) -> None:
        """End the process, with all processes that it started."""
        self.begin_close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for child in self._children:
            if child.is_running():
                child.kill()
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
