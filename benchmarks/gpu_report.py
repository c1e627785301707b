"""What RAGCache does on one NVIDIA GPU, in 15 minutes: `make bench-gpu`.

    python benchmarks/gpu_report.py                       # a 7B's shape with random weights
    python benchmarks/gpu_report.py --model ID_OR_FOLDER  # a model of yours, with full attention
    python benchmarks/gpu_report.py --only ttft borrowed  # these parts again, after a run
    python benchmarks/gpu_report.py --cpu                 # all of it, small, on vLLM's CPU build

The 7B's shape takes 28 GiB of GPU memory, 14 GiB in /dev/shm and 60 GB of disk, which is given back.

| part | what it asks |
|---|---|
| start | do vLLM and RAGCache start, and with what; how fast are prefills and copies to the device |
| answers | are RAGCache's answers vLLM's, in float32, in bfloat16 and with batch invariance |
| likeness | do borrowed documents give exact answers at ratio 1, and how like are others |
| ttft | seconds to the first token: computed, from device, host and disk |
| borrowed | the same for documents in ever new orders, computed and borrowed |
| stream | a Zipf stream: RAGCache, vLLM's prefix cache, vLLM's host offload with LRU and ARC |

Each part is a process of its own, with a limit of its own. It writes what it finds at once; one that
fails or takes too long is noted, and the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu.answering import answers, likeness
from gpu.model import weights
from gpu.report import write_report
from gpu.run import RESULTS, Part, Run, carry_out, program_of
from gpu.starting import LADDER, machine, start
from gpu.streaming import SYSTEMS, stream
from gpu.timing import borrowed, ttft
from programs import command_line
from rich.console import Console

from ragcache_cli.machine import this_machine

BUDGET_S = 1000.0
CPU_BUDGET_S = 1800.0
GPU_BYTES = 28 << 30
"""What the 7B's shape takes with the largest of its caches."""
PARTS = {
    "start": start,
    "answers": answers,
    "likeness": likeness,
    "ttft": ttft,
    "borrowed": borrowed,
    "stream": stream,
}
"""What may be asked for by name. Each part is a process of its own, which starts the engines it needs."""
PREPARATIONS = {"machine": machine, "weights": weights}
"""What `start` lets be carried out before."""

console = Console(stderr=True)


class Benchmark:
    """Carries out the parts of a run, one after the other, while there is time.

    only: the parts to carry out; all if it is empty. eager: start vLLM without torch.compile and CUDA
    graphs. program: the command that carries out one part.
    """

    def __init__(
        self,
        run: Run,
        budget_s: float,
        only: Sequence[str],
        *,
        eager: bool = False,
        program: list[str] | None = None,
    ) -> None:
        self.run = run
        self._eager = eager
        self._end = time.monotonic() + budget_s
        self._only = only or list(PARTS)
        self._program = program or program_of(run, __file__)

    def carry_out_all(self) -> None:
        if "start" in self._only and not self.start():
            return
        for group, at_once in self.groups():
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(self.one, group))

    def one(self, part: Part) -> bool:
        console.print(f"{part.name} (at most {part.limit_s:.0f} s)")
        return carry_out(self.run, part, self._end - time.monotonic(), self._program)

    def start(self) -> bool:
        """Find settings with which vLLM starts, and keep them for the other parts."""
        run = self.run
        self.one(Part("machine", 90))
        if run.model is None:
            self.one(Part("weights", 150))
        limit_s = 300.0 if run.is_cpu else 180.0
        for environment, arguments in LADDER[: 1 if run.is_cpu else None]:
            if self._eager and not run.is_cpu and "enforce_eager" not in arguments:
                continue
            run.keep_settings(environment=environment, arguments=arguments)
            if self.one(Part("start:vllm", limit_s)):
                return self.one(Part("start:ragcache", limit_s))
        return False

    def groups(self) -> Iterator[tuple[list[Part], int]]:
        """Yield parts that may run beside each other, and how many of them: answers, not times."""
        run, sizes = self.run, self.run.sizes
        slow = 4.0 if run.is_cpu else 1.0
        beside: list[Part] = []
        if "answers" in self._only:
            systems = ("RAGCache", "vLLM", "vLLM's prefix cache")
            beside += [
                Part(f"answers:{system} {dtype}", 240 * slow, environment_of(dtype))
                for dtype in sizes.dtypes
                for system in systems
            ]
        if "likeness" in self._only:
            beside.append(Part("likeness", 240 * slow))
        yield beside, sizes.at_once
        if "ttft" in self._only:
            yield [Part(f"ttft:{system}", 140 * slow) for system in ("ragcache", "vllm")], 1
        if "borrowed" in self._only:
            yield [Part("borrowed", 100 * slow)], 1
        if "stream" in self._only:
            yield [Part(f"stream:{system}", 110 * slow) for system in SYSTEMS], 1


def environment_of(dtype: str) -> dict[str, str]:
    return {"VLLM_BATCH_INVARIANT": "1"} if dtype == "invariant" else {}


def main() -> int:
    parser = command_line(__doc__)
    today = datetime.date.today().isoformat()
    parser.add_argument("--out", type=Path, help=f"a folder (benchmarks/results/gpu-{today})")
    parser.add_argument("--model", help="a hub id or folder (a 7B's shape with random weights)")
    parser.add_argument("--cpu", action="store_true", help="small, on vLLM's CPU build")
    parser.add_argument(
        "--eager", action="store_true", help="without torch.compile and CUDA graphs: starts sooner"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for all (1000)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    out = asked.out or Path(f"benchmarks/results/{'gpu-try' if asked.cpu else f'gpu-{today}'}")
    run = Run(out.absolute(), asked.cpu, asked.model, asked.part or "run")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if asked.part:
        name, _, detail = asked.part.partition(":")  # such as "stream:lru"
        asyncio.run({**PREPARATIONS, **PARTS}[name](run, detail))
        sys.stdout.flush()
        os._exit(0)  # whatever threads an engine has left
    if not run.is_cpu and (missing := missing_for(run)):
        parser.error(missing)
    if asked.only and "start" not in asked.only and not run.settings:
        parser.error(f"nothing has started in {run.out} yet: name start as well")
    if not asked.only:
        run.forget()
    began = time.monotonic()
    budget_s = asked.budget or (CPU_BUDGET_S if asked.cpu else BUDGET_S)
    try:
        Benchmark(run, budget_s, asked.only, eager=asked.eager).carry_out_all()
    finally:
        shutil.rmtree(run.model_folder, ignore_errors=True)
    report = write_report(run.rows(), run.out)
    console.print(f"{report} and {RESULTS} beside it, after {time.monotonic() - began:.0f} s")
    return 0 if not any(row["what"] == "failed" for row in run.rows()) else 1


def missing_for(run: Run) -> str | None:
    """Return what this machine lacks for the run on a GPU; None if nothing."""
    gpus = this_machine().gpus
    if not gpus:
        return "no NVIDIA GPU here; --cpu tries all of it, small"
    free = gpus[0].free_bytes
    if run.model is None and free < GPU_BYTES:
        wanted, found = GPU_BYTES >> 30, free >> 30
        return f"a 7B's shape takes {wanted} GiB of GPU memory, {found} are free: give a smaller --model"
    return None


if __name__ == "__main__":
    sys.exit(main())
