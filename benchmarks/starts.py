"""Measure how long a fresh process takes to its first token: RAGCacheEngine against vLLM's own LLM.

    python benchmarks/starts.py --out benchmarks/results/starts              # seven minutes
    python benchmarks/starts.py --rounds 2 --sides vllm ragcache    # two minutes, to see that it runs

Each start is a process of its own, from before Python begins until `generate` with one token returns. In
each round every side starts once, in an order that changes from round to round. The first round warms the
page cache and is not counted. All sides have the demo's model and the settings that RAGCache chooses:
the same bytes of device cache, blocks and data type, without compilation. The third side has
a disk tier, whose folder holds tensors of an earlier life.

The script reports medians with quartiles, and the quotient of RAGCache over vLLM in the same round.
Processor time is that of all processes up to the first token: other programs on the machine disturb it
less.
"""

from __future__ import annotations

# Nothing heavy here: vLLM's processes import this file again.
import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from programs import command_line, keep
from tables import spread, table

SIDES = ("vllm", "ragcache", "ragcache with disk")
STOCK = SIDES[0]
DEVICE_BYTES = 1 << 30
CONTEXT_TOKENS = 2_048
DISK_BYTES = 2 << 30
PROMPT = "Why is the sky blue?"


@dataclass(frozen=True, slots=True)
class Start:
    """One start. total_s: wall time to the first token. cpu_s: processor time of all its processes."""

    side: str
    total_s: float
    cpu_s: float


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--out", type=Path, help="folder for starts.json and starts.md")
    parser.add_argument("--start", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--disk", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.start:
        start_here(asked.start, asked.model, asked.disk, asked.report, fill=asked.fill)
        return
    from ragcache_cli.models import demo_model

    model = str(demo_model())
    with TemporaryDirectory(dir=Path.home() / ".cache") as scratch:
        folder = Path(scratch)
        if SIDES[2] in asked.sides:
            run_start(SIDES[2], model, folder, fill=True)
        rounds: list[dict[str, Start]] = []
        for one in measure_rounds(asked.sides, model, folder, asked.rounds):
            rounds.append(one)
            # After each round, so that an interrupted run leaves a report.
            kept = [[asdict(start) for start in each.values()] for each in rounds]
            keep(asked.out, "starts", describe(asked.sides, rounds), kept)
    print(*describe(asked.sides, rounds), sep="\n")


def measure_rounds(
    sides: Sequence[str], model: str, folder: Path, rounds: int
) -> Iterator[dict[str, Start]]:
    """Start every side once a round; yield the starts by side, without those of the first round."""
    for number in range(rounds + 1):
        turn = number % len(sides)
        order = [*sides[turn:], *sides[:turn]]
        starts = {side: run_start(side, model, folder) for side in order}
        said = ", ".join(f"{start.side} {start.total_s:.2f} s" for start in starts.values())
        print(f"round {number}: {said}", file=sys.stderr, flush=True)
        if number:
            yield starts


def run_start(side: str, model: str, folder: Path, *, fill: bool = False) -> Start:
    """Start a side in a fresh process and wait for its end. Raises SystemExit if that fails.

    folder: where the disk tier is. fill: also ask for answers that fill the disk tier.
    """
    report, output = folder / "report.json", folder / "output.log"
    report.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--start", side, "--model", model, "--report", str(report)]
    command += ["--disk", str(folder / "tier"), *(["--fill"] if fill else [])]
    began_s = time.monotonic()
    with output.open("wb") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT)
    if ended.returncode or not report.exists():
        raise SystemExit(f"{side} did not start:\n{output.read_text(errors='replace')[-4_000:]}")
    told = json.loads(report.read_text(encoding="utf-8"))
    return Start(side, told["token_s"] - began_s, told["cpu_s"])


# -- one start, in its own process -----------------------------------------------------------------


def start_here(side: str, model: str, disk: Path, report: Path, *, fill: bool) -> None:
    """Make this side's engine in this process, let it say one token, and write when that was."""
    arguments: dict[str, Any] = {"max_model_len": CONTEXT_TOKENS}
    if side == STOCK:
        from vllm import LLM, SamplingParams

        from ragcache_engine.backends.vllm.cpu_defaults import BLOCK_TOKENS

        on_cpu = {"block_size": BLOCK_TOKENS, "enforce_eager": True} if is_cpu_build() else {}
        stock = LLM(
            model,
            kv_cache_memory_bytes=DEVICE_BYTES,
            enable_prefix_caching=True,
            **on_cpu,
            **arguments,
        )
        stock.generate([PROMPT], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        write_report(report, time.monotonic())
        return
    from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

    tier = {"disk_cache": DISK_BYTES, "disk_cache_dir": disk} if side == SIDES[2] else {}
    config = EngineConfig(model=model, device_cache=DEVICE_BYTES, vllm_args=arguments, **tier)
    with RAGCacheEngine(config) as engine:
        engine.generate(PROMPT, options=SamplingOptions(max_tokens=1))
        write_report(report, time.monotonic())
        for number in range(40 if fill else 0):  # 1,000 to 1,500 tokens each
            engine.generate(f"{number} " * 500, options=SamplingOptions(max_tokens=1))


def is_cpu_build() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def write_report(report: Path, token_s: float) -> None:
    import psutil

    this = psutil.Process()
    processes = [this, *this.children(recursive=True)]
    cpu_s = sum(sum(process.cpu_times()[:2]) for process in processes)
    report.write_text(json.dumps({"token_s": token_s, "cpu_s": cpu_s}), encoding="utf-8")


# -- the report ------------------------------------------------------------------------------------


def describe(sides: Sequence[str], rounds: Sequence[dict[str, Start]]) -> list[str]:
    """Write a Markdown table of the medians, and the quotients of each round."""
    heads = ["seconds, median (quartiles)", *sides]
    names = {"total_s": "to the first token", "cpu_s": "processor time"}
    lines = [
        *table(
            heads,
            (
                [name, *(spread([getattr(one[side], field) for one in rounds]) for side in sides)]
                for field, name in names.items()
            ),
        )
    ]
    for side in sides:
        if side == STOCK or STOCK not in sides:
            continue
        wall = [one[side].total_s / one[STOCK].total_s for one in rounds]
        busy = [one[side].cpu_s / one[STOCK].cpu_s for one in rounds]
        lines.append(
            f"{side} / {STOCK}, in the same round: {spread(wall, '.3f')} of the time, "
            f"{spread(busy, '.3f')} of the processor time ({len(rounds)} rounds)"
        )
    return lines


if __name__ == "__main__":
    main()
