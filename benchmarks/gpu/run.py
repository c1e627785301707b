"""A run: its folder, its results, and the processes that carry its parts out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.sizes import CPU, GPU, Sizes

RESULTS = "results.jsonl"
SETTINGS = "settings.json"
LOGS = "logs"
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What every part knows.

    out: the folder of the results. is_cpu: whether this is a small try on a CPU. model: a model folder or
    hub id of the user's; None: a 7B's shape with random weights. part: the part that this process
    carries out.
    """

    out: Path
    is_cpu: bool
    model: str | None = None
    part: str = "run"

    @property
    def sizes(self) -> Sizes:
        return CPU if self.is_cpu else GPU

    @property
    def settings(self) -> Row:
        """What `start` has found: "arguments" and "environment" of vLLM, "prefill_token_s"."""
        file = self.out / SETTINGS
        return dict(json.loads(file.read_text())) if file.exists() else {}

    @property
    def model_folder(self) -> Path:
        """Where the model with random weights lies during a run."""
        return self.out / "model"

    def forget(self) -> None:
        """Make the folder; remove what an earlier run has written there, and nothing else."""
        self.out.mkdir(parents=True, exist_ok=True)
        for name in (RESULTS, SETTINGS):
            (self.out / name).unlink(missing_ok=True)
        shutil.rmtree(self.out / LOGS, ignore_errors=True)

    def keep_settings(self, **found: Any) -> None:
        (self.out / SETTINGS).write_text(json.dumps({**self.settings, **found}))

    def emit(self, what: str, **found: Any) -> None:
        """Write one line of results, at once: a part that is ended has told what it knew."""
        line = json.dumps({"part": self.part, "what": what, **found}, default=str)
        with (self.out / RESULTS).open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def rows(self) -> list[Row]:
        file = self.out / RESULTS
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def vllm_args(self, dtype: str, **more: Any) -> Row:
        """Return arguments that RAGCache and stock vLLM get alike."""
        arguments: Row = {"dtype": dtype}
        if self.is_cpu:
            arguments["enforce_eager"] = True
        else:
            # The bytes of the cache are given. vLLM only wants to know how much must be free.
            arguments["gpu_memory_utilization"] = 0.3
            if dtype == "float32":  # FlashAttention takes 16 bits only
                arguments["attention_backend"] = "TRITON_ATTN"
        return {**arguments, **self.settings.get("arguments", {}), **more}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run. name: for instance "stream:lru". limit_s: when it is ended."""

    name: str
    limit_s: float
    environment: Mapping[str, str] = field(default_factory=dict)


def carry_out(run: Run, part: Part, left_s: float, program: list[str]) -> bool:
    """Carry a part out in a process of its own; return whether it came to its end.

    left_s: how long the whole run may still take. program: the command that carries out one part; its
    name is added. A part that fails or takes too long is noted with the last errors of its log.
    """
    if left_s < 10:
        run.emit("left out", name=part.name, why="the time of the run was over")
        return False
    log = run.out / LOGS / f"{part.name.replace(':', '-').replace(' ', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **run.settings.get("environment", {}), **part.environment}
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*program, "--part", part.name],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(min(part.limit_s, left_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    seconds = round(time.monotonic() - began, 1)
    if code == 0:
        run.emit("done", name=part.name, seconds=seconds)
        return True
    why = f"ended with {code}" if code is not None else f"was ended after {seconds:.0f} s"
    run.emit("failed", name=part.name, seconds=seconds, why=why, errors=last_errors(log))
    return False


def last_errors(log: Path) -> list[str]:
    """Return the last lines of a log that tell of errors; else its last lines."""
    lines = [line.strip()[-300:] for line in log.read_text(errors="replace").splitlines() if line]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines)[-3:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)


def program_of(run: Run, file: str) -> list[str]:
    """Return the command that carries out a part of this run. file: of the program."""
    words = [sys.executable, file, "--out", str(run.out)]
    words += ["--cpu"] if run.is_cpu else []
    return words + (["--model", run.model] if run.model else [])
