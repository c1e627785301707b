"""What RAGCache does on one NVIDIA GPU, in ten minutes: `make bench-gpu`.

    python benchmarks/gpu_report.py                       # a 7B's shape with random weights: 15 GB of disk
    python benchmarks/gpu_report.py --model ID_OR_FOLDER  # a model of yours, with full attention
    python benchmarks/gpu_report.py --only ttft borrowed  # these parts alone, after a run that has started
    python benchmarks/gpu_report.py --cpu                 # all of it, small, on vLLM's CPU build

| part | what it asks |
|---|---|
| start | does vLLM start, and RAGCache; with what; how fast are prefills and copies between host and device |
| answers | are RAGCache's answers vLLM's, in float32, in bfloat16 and with batch invariance |
| likeness | do borrowed documents give exact answers at ratio 1, and how like are others |
| ttft | seconds to the first token: computed, from device, host and disk |
| borrowed | the same for documents in ever new orders, computed and borrowed |
| stream | a Zipf stream: RAGCache, vLLM's prefix cache, vLLM's host offload with LRU and ARC |

Each part is a process of its own, with a limit of its own. It writes what it finds at once; one that fails or
takes too long is noted, and the next one begins.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu.parts import LADDER, SYSTEMS, carry_out_part
from gpu.report import write_report
from gpu.run import RESULTS, Part, Run, carry_out, program_of
from rich.console import Console

BUDGET_S = 600.0
CPU_BUDGET_S = 1800.0
PARTS = ("start", "answers", "likeness", "ttft", "borrowed", "stream")

console = Console(stderr=True)


class Benchmark:
    """Carries out the parts of a run, one after the other, while there is time.

    only: the parts to carry out; all if it is empty. program: the command that carries out one part.
    """

    def __init__(
        self, run: Run, budget_s: float, only: Sequence[str], program: list[str] | None = None
    ) -> None:
        self.run = run
        self._end = time.monotonic() + budget_s
        self._only = only or PARTS
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
        self.one(Part("start:machine", 90))
        if run.model is None:
            self.one(Part("weights", 150))
        limit_s = 300.0 if run.is_cpu else 130.0
        for environment, arguments in LADDER[: 1 if run.is_cpu else None]:
            run.keep_settings(environment=environment, arguments=arguments)
            if self.one(Part("start:vllm", limit_s)):
                return self.one(Part("start:ragcache", limit_s))
        return False

    def groups(self) -> Iterator[tuple[list[Part], int]]:
        """Yield parts that may run beside each other, and how many of them: answers, not times."""
        run, sizes = self.run, self.run.sizes
        slow = 4.0 if run.is_cpu else 1.0
        if "answers" in self._only:
            systems = ("RAGCache", "vLLM", "vLLM's prefix cache")
            beside = [
                Part(f"answers:{system} {dtype}", 150 * slow, environment_of(dtype))
                for dtype in sizes.dtypes
                for system in systems
            ]
            yield beside, sizes.at_once
        for name, limit_s in (("likeness", 90.0), ("ttft", 120.0), ("borrowed", 80.0)):
            if name in self._only:
                yield [Part(name, limit_s * slow)], 1
        if "stream" in self._only:
            yield [Part(f"stream:{system}", 75 * slow) for system in SYSTEMS], 1


def environment_of(dtype: str) -> dict[str, str]:
    return {"VLLM_BATCH_INVARIANT": "1"} if dtype == "invariant" else {}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    parser.add_argument("--model", help="a hub id or folder (a 7B's shape with random weights)")
    parser.add_argument("--cpu", action="store_true", help="small, on vLLM's CPU build")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for all (600)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    run = Run(asked.out.absolute(), asked.cpu, asked.model, asked.part or "run")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if asked.part:
        asyncio.run(carry_out_part(run))
        sys.stdout.flush()
        os._exit(0)  # whatever threads an engine has left
    if not asked.only and run.out.exists():
        shutil.rmtree(run.out)
    run.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    budget_s = asked.budget or (CPU_BUDGET_S if asked.cpu else BUDGET_S)
    try:
        Benchmark(run, budget_s, asked.only).carry_out_all()
    finally:
        if not asked.only:
            shutil.rmtree(run.out / "model", ignore_errors=True)
    report = write_report(run.rows(), run.out)
    console.print(f"{report} and {RESULTS} beside it, after {time.monotonic() - began:.0f} s")
    return 0 if not any(row["what"] == "failed" for row in run.rows()) else 1


if __name__ == "__main__":
    sys.exit(main())
