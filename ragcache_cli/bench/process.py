"""The other end of a worker: starts its process, gives orders, and looks at what it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from ragcache_cli.bench.systems import Sizes, System
from ragcache_cli.bench.workload import Request
from ragcache_cli.errors import BenchFailed

END_S = 60.0


class Worker:
    """Blocking, one order at a time. A context manager; leaving it ends the process.

    log: a file for what the process and its libraries say.
    Orders raise BenchFailed, which carries the worker's own words.
    """

    def __init__(self, system: System, sizes: Sizes, log: Path) -> None:
        self.system, self._sizes, self._log = system, sizes, log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ragcache_cli.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
            )

    def begin_start(self) -> None:
        """Begin to start the engine; `started` waits for it. Several may start side by side."""
        self._send(do="start", system=self.system.key, sizes=asdict(self._sizes))

    def started(self) -> None:
        self._answer()

    def prepare(self, folder: Path, top_k: int) -> None:
        self._ask(do="prepare", folder=str(folder), top_k=top_k)

    def play(
        self, requests: Sequence[Request], at_once: int | None = None, *, ignore_eos: bool = True
    ) -> list[dict[str, Any]]:
        """See Served.play."""
        rows = [[one.question, one.at_s, one.max_tokens] for one in requests]
        answers: list[dict[str, Any]] = self._ask(
            do="play", requests=rows, at_once=at_once, ignore_eos=ignore_eos
        )
        return answers

    def clear(self) -> None:
        self._ask(do="clear")

    def told(self) -> dict[str, Any]:
        told: dict[str, Any] = self._ask(do="told")
        return told

    def cpu_s(self) -> float:
        """Seconds of processor time its processes have taken since they began."""
        times = [process.cpu_times() for process in self._processes()]
        return sum(time.user + time.system for time in times)

    def memory_bytes(self) -> int:
        """What its processes hold, pages shared among them counted once (proportional set size)."""
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
        return self._answer()

    def _send(self, **order: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        answer = json.loads(line)
        if "error" in answer:
            raise BenchFailed(
                f"{self.system.name}: {answer['kind']}: {answer['error']} (its log: {self._log})"
            )
        return answer["ok"]

    def _gone(self) -> BenchFailed:
        return BenchFailed(
            f"{self.system.name}: its process ended by itself, often for want of memory; its log is "
            f"{self._log}"
        )

    def close(self) -> None:
        """End it, with all its processes."""
        if self._process.poll() is None:
            children = self._processes()[1:]
            assert self._process.stdin
            try:
                self._process.stdin.write('{"do": "close"}\n')
                self._process.stdin.close()
                self._process.wait(END_S)
            except (OSError, subprocess.TimeoutExpired):
                self._process.kill()
                self._process.wait()
            for child in children:
                if child.is_running():
                    child.kill()
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
