"""The bench's side of a worker: start its process, give it orders, and measure what it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from comparing.systems import Sizes, System
from comparing.workload import Request
from ragcache_cli.errors import CommandError

END_S = 60.0


class Worker:
    """A system in a process of its own. A context manager; leaving it ends the process.

    Orders block, and the worker carries out one at a time. An order that fails raises CommandError with
    the worker's own message. log: the file for the output of the process and its libraries.
    """

    def __init__(self, system: System, sizes: Sizes, log: Path) -> None:
        self.system, self._sizes, self._log = system, sizes, log
        self._children: list[psutil.Process] = []
        # The process and those of vLLM import from the folder of the benchmarks.
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "comparing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def start(self) -> None:
        """Start the engine, and wait until it answers."""
        self.ask("start", asdict(self.system), asdict(self._sizes))

    def play(
        self, requests: Sequence[Request], at_once: int | None = None, *, ignore_eos: bool = True
    ) -> list[dict[str, Any]]:
        """See RunningSystem.play."""
        rows = [[one.question, one.at_s, one.max_tokens] for one in requests]
        answers: list[dict[str, Any]] = self.ask("play", rows, at_once, ignore_eos)
        return answers

    def ask(self, order: str, *given: Any) -> Any:
        """Let the system carry out one of RunningSystem's methods."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"do": order, "given": given}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CommandError(
                f"{self.system.name}: its process ended by itself, often out of memory; its log is "
                f"{self._log}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise CommandError(f"{self.system.name}: {answer['error']} (its log: {self._log})")
        return answer["ok"]

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

    def begin_close(self) -> None:
        """Ask the process to end; `close` waits for it. Several may end at a time."""
        assert self._process.stdin
        if self._process.poll() is None and not self._process.stdin.closed:
            self._children = self._processes()[1:]
            with suppress(OSError):
                self._process.stdin.write('{"do": "close", "given": []}\n')
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
