"""Ask an engine for an hour while things go wrong, and compare every token.

    python benchmarks/soak.py --quick                 # `make soak-quick`: five minutes
    python benchmarks/soak.py --out FOLDER            # `make soak`: an hour, or 10,000 requests
    python benchmarks/soak.py --out FOLDER            # again: the next piece, until the requests are made

Device, host and disk are so small that each of them evicts. 64 callers of three tenants ask, leave
streams early and forget documents. Meanwhile processes of vLLM are killed, bytes of stored files are
flipped, the disk is full for seconds, and three more engines work: one on the same folder, one that
reuses documents at any position, and a client of a server that does. No exact answer may differ from
that of vLLM without a cache (float32, greedy), no request may hang or fail, no forgotten document may be
served, and nothing may be left behind.

The folder gets the raw figures of each piece, and report.md about all pieces. The exit status is 1 if
anything happened that must not. Filling the disk needs a file system of its own, and so the right to
mount one; without it this fault is left out, and the report says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from programs import command_line, describe_machine
from pydantic import TypeAdapter
from soaking.callers import Callers, Tally
from soaking.faults import Faults, small_disk
from soaking.others import KINDS, open_other
from soaking.report import REPORT, Piece, failures, read_pieces, together, write_piece
from soaking.watch import SHARED_MEMORY, Watch, sample, wait_for_end
from soaking.workload import (
    Ask,
    Workload,
    answer_with_memory_backend,
    answer_with_vllm,
    make_asks,
)

from ragcache_cli.machine import this_machine
from ragcache_engine import Document, EngineConfig, RAGCacheEngine

MIB = 1 << 20
CONTEXT_TOKENS = 640
DEVICE, HOST, DISK = 40 * MIB, 32 * MIB, 72 * MIB
"""Bytes of the tiers: about 900, 700 and 1,600 tokens of the small model, some 4, 3 and 8 prompts."""
MOUNTED = 2 * DISK
"""Bytes of the file system below the disk cache: room for two engines' files, and soon filled."""
PRIVATE = 16
"""How many callers check that a document of their own is forgotten."""
OTHERS_PRIVATE = 2
"""How many callers of each other engine do."""
TIMEOUT_S = 300.0
"""A request of a backend that is silent this long counts as hung."""
OTHERS_CALLERS = 4
OTHERS_SHARE = 0.6
"""The other engines work for this share of the time."""


RESULT = "result: "
"""The beginning of the line with a role's result; vLLM prints lines of its own before and after."""


def main() -> int:
    parsed = arguments()
    if parsed.role:
        result = json.dumps(ROLES[parsed.role](json.load(sys.stdin)))
        print(f"\n{RESULT}{result}", flush=True)
        return 0
    out = parsed.out or Path("benchmarks/results") / f"soak-{date.today().isoformat()}"
    pieces = read_pieces(out)
    left = parsed.requests - together(pieces).requests
    if left <= 0:
        print(f"{out / REPORT}: all {parsed.requests:,} requests were made already")
        return 1 if failures(pieces) else 0
    piece = run_piece(parsed, number=len(pieces) + 1, requests=left)
    write_piece(out, piece)
    pieces = read_pieces(out)
    print(f"\nThe report is {out / REPORT}: {together(pieces).requests:,} requests so far")
    found = failures(pieces)
    for line in found:
        print(f"  FAILED: {line}")
    return 1 if found else 0


def arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="four minutes, 100 different prompts")
    parser.add_argument("--requests", type=int, default=10_000, help="of all pieces together")
    parser.add_argument("--minutes", type=float, help="length of this piece (60; quick: 4)")
    parser.add_argument("--prompts", type=int, help="different prompts (600; quick: 100)")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--backend", choices=["vllm", "memory"], default="vllm")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/soak-DATE")
    parser.add_argument("--role", choices=list(ROLES), help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    parsed.minutes = parsed.minutes or (4 if parsed.quick else 60)
    parsed.prompts = parsed.prompts or (100 if parsed.quick else 600)
    return parsed


def run_piece(parsed: argparse.Namespace, number: int, requests: int) -> Piece:
    """Run for the given minutes, or until the requests are made."""
    seed = parsed.seed + number - 1
    model = parsed.model or (demo_model() if parsed.backend == "vllm" else "memory")
    shared, private = make_asks(parsed.prompts, PRIVATE + OTHERS_PRIVATE * len(KINDS), seed)
    print(f"Answering {len(shared) + len(private)} prompts without a cache", flush=True)
    prompts = [ask.prompt for ask in (*shared, *private)]
    order = {"backend": parsed.backend, "model": model, "prompts": prompts}
    answers = start_role("reference", order)
    tokens = json.loads(finish_role(answers))
    workload = Workload(
        tuple(shared), tuple(private), dict(zip(prompts, map(tuple, tokens), strict=True))
    )
    with ExitStack() as stack:
        parent = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ragcache-soak-")))
        can_fill = parsed.backend == "vllm" and stack.enter_context(small_disk(parent, MOUNTED))
        return _soak(parsed, number, seed, requests, workload, model, parent / "kv", can_fill)


def _soak(
    parsed: argparse.Namespace,
    number: int,
    seed: int,
    requests: int,
    workload: Workload,
    model: str,
    folder: Path,
    can_fill: bool,
) -> Piece:
    begun, seconds = time.monotonic(), parsed.minutes * 60
    folder.mkdir()
    shared_memory = shared_memory_names()
    before = sample(begun, 0, folder)
    print("Starting the engine", flush=True)
    engine = RAGCacheEngine(make_config(parsed.backend, model, DISK, folder))
    deadline = time.monotonic() + seconds
    callers = Callers(
        engine,
        replace(workload, private=workload.private[:PRIVATE]),
        count=parsed.callers,
        requests=requests,
        deadline=deadline,
        seed=seed,
    )
    every_s = {"flip": seconds / 60, "fill": seconds / 6, "kill": max(90.0, seconds / 12)}
    if parsed.backend == "memory":
        every_s = {}
    faults = Faults(
        folder,
        every_s,
        can_fill=can_fill,
        seed=seed,
        answered=lambda: callers.tally.requests,
        between_kills=2 * parsed.callers,
    )
    watch = Watch(begun, folder, max(1.0, seconds / 120), lambda: callers.tally.requests)
    for part in (callers, faults, watch):
        part.start()
    others = {}
    if parsed.backend == "vllm":
        for number, kind in enumerate(KINDS):
            order = other_order(workload, number, model, folder, seconds, seed)
            others[kind] = start_role("other", order)
    show_progress(callers, faults, begun)
    callers.join()
    faults.stop()
    watch.stop()
    tallies = {
        kind: TypeAdapter(Tally).validate_json(finish_role(other)) for kind, other in others.items()
    }
    stats = engine.stats()
    engine.close()
    left = wait_for_end(60)
    return Piece(
        number=number,
        seed=seed,
        machine=describe_machine(this_machine()),
        settings={
            "callers": parsed.callers,
            "prompts": parsed.prompts,
            "model": Path(model).name,
            "backend": parsed.backend,
            "minutes": parsed.minutes,
        },
        seconds=time.monotonic() - begun,
        tally=callers.tally,
        others=tallies,
        faults=dict(faults.made),
        cannot=[] if can_fill else ["fill"],
        before=asdict(before),
        after=asdict(sample(begun, callers.tally.requests, folder)),
        left_processes=left,
        left_shared_memory=sorted(shared_memory_names() - shared_memory),
        stats={
            "retried": stats.retried,
            "damaged": stats.tiers.damaged,
            "evicted": sum(stats.tiers.evicted.values()),
        },
        samples=[asdict(one) for one in watch.samples],
    )


def make_config(
    backend: str, model: str, disk: int, folder: Path, **further: object
) -> EngineConfig:
    """Make the settings of an engine whose tiers all evict. further: other fields of EngineConfig."""
    return EngineConfig.model_validate(
        {
            "model": model,
            "backend": backend,
            "device_cache": DEVICE,
            "host_cache": HOST,
            "disk_cache": disk,
            "disk_cache_dir": folder,
            "request_timeout_s": TIMEOUT_S,
            "vllm_args": {"dtype": "float32", "max_model_len": CONTEXT_TOKENS},
            **further,
        }
    )


def demo_model() -> str:
    from ragcache_cli.models import demo_model as make

    return str(make())


def shared_memory_names() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()


def show_progress(callers: Callers, faults: Faults, begun: float) -> None:
    """Print a line every half minute while the callers call."""
    shown = time.monotonic()
    while callers.are_calling:
        time.sleep(0.2)
        if time.monotonic() - shown < 30:
            continue
        shown = time.monotonic()
        tally = callers.tally
        print(
            f"{(shown - begun) / 60:6.1f} min {tally.requests:6,} requests; wrong {tally.wrong}, "
            f"remembered {tally.remembered}, hangs {tally.hangs}, errors {dict(tally.errors)}; "
            f"faults {dict(faults.made)}",
            flush=True,
        )


def start_role(role: str, order: dict[str, Any]) -> subprocess.Popen[str]:
    """Start this script in a process of its own, for another part of the work."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--role", role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    return process


def finish_role(process: subprocess.Popen[str]) -> str:
    """Wait for the process, and return its result."""
    assert process.stdout is not None
    printed = process.stdout.read()
    if process.wait() != 0:
        raise RuntimeError(f"a process of the soak ended with status {process.returncode}")
    (result,) = [line for line in printed.splitlines() if line.startswith(RESULT)]
    return result.removeprefix(RESULT)


def other_order(
    workload: Workload, number: int, model: str, folder: Path, seconds: float, seed: int
) -> dict[str, Any]:
    """Tell one of the other engines what to do. number: which of KINDS."""
    first = PRIVATE + OTHERS_PRIVATE * number
    private = workload.private[first : first + OTHERS_PRIVATE]
    return {
        "kind": KINDS[number],
        "model": model,
        "folder": str(folder),
        "seconds": seconds * OTHERS_SHARE,
        "seed": seed + 1000 * (number + 1),
        "shared": [asdict(ask) for ask in workload.shared],
        "private": [asdict(ask) for ask in private],
        "answers": {
            ask.prompt: workload.answers[ask.prompt] for ask in (*workload.shared, *private)
        },
    }


def answer_reference(order: dict[str, Any]) -> list[tuple[int, ...]]:
    if order["backend"] == "memory":
        return answer_with_memory_backend(order["prompts"])
    return answer_with_vllm(order["model"], CONTEXT_TOKENS, order["prompts"])


def run_other_engine(order: dict[str, Any]) -> dict[str, Any]:
    """Ask one of the other engines."""
    shared, private = (
        tuple(
            Ask(ask["prompt"], tuple(Document(**one) for one in ask["documents"]))
            for ask in order[name]
        )
        for name in ("shared", "private")
    )
    answers = {prompt: tuple(answer) for prompt, answer in order["answers"].items()}
    deadline = time.monotonic() + order["seconds"]
    configure = partial(make_config, "vllm", order["model"])
    sizes = {"device": DEVICE, "host": HOST, "disk": DISK}
    folder = Path(order["folder"])
    with open_other(order["kind"], configure, folder, sizes, CONTEXT_TOKENS) as engine:
        callers = Callers(
            engine,
            Workload(shared, private, answers),
            count=OTHERS_CALLERS,
            requests=1 << 30,
            deadline=deadline,
            seed=order["seed"],
        )
        callers.start()
        callers.join()
    return vars(callers.tally)


ROLES = {"reference": answer_reference, "other": run_other_engine}
"""What this script does in the processes that it starts: order -> what it prints as JSON."""


if __name__ == "__main__":  # vLLM starts processes that import this script again
    sys.exit(main())
