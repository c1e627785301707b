"""Compare RAGCache with vLLM's own caches: the same questions, at the same times, to each.

    python benchmarks/compare.py                   # `make bench`: about 45 minutes, a quiet machine
    python benchmarks/compare.py --quick           # `make bench-quick`: one trace, 14 minutes
    python benchmarks/compare.py --anywhere        # `make bench-anywhere`: reuse at any position
    python benchmarks/compare.py --parts           # `make bench-parts`: RAGCache with parts changed
    python benchmarks/compare.py --report FOLDER   # the report of a run again, from its raw figures

The questions come from the shared question sets in the folder that RAGCACHE_DATA names, or from the demo
if there are none. Writes raw figures, a plot and report.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from itertools import chain, count
from pathlib import Path

from comparing.drive import Bench, carry_out
from comparing.plan import PLANS, Plan, TraceSpec
from comparing.questions import Corpora, TraceSummary, main_set, model_tokenizer
from comparing.record import RAW, RunRecord, Seen, read_record, write_record
from comparing.report import REPORT, write_report
from comparing.systems import SYSTEMS, Sizes
from programs import command_line, describe_machine
from rich.console import Console
from rich.markup import escape

from ragcache_cli.logging_setup import silence_libraries
from ragcache_cli.machine import Machine, installed_versions, this_machine
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.model_size import model_size
from ragcache_cli.models import DEMO_MODEL
from ragcache_cli.precision import choose_dtype
from ragcache_cli.terminal import Phases
from ragcache_engine import RAGCacheError

LOG = "systems.log"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    length = parser.add_mutually_exclusive_group()
    for name in [name for name in PLANS if name != "usual"]:
        length.add_argument(f"--{name}", dest="plan", action="store_const", const=name)
    length.add_argument(
        "--report", type=Path, metavar="FOLDER", help="measure nothing: write a run's report again"
    )
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, metavar="NAME", help=", ".join(SYSTEMS)
    )
    parser.add_argument(
        "--backend",
        choices=("vllm", "memory"),
        default="vllm",
        help="memory: no model and made-up answers, to see that it runs",
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the questions and their times")
    parser.add_argument(
        "--out", type=Path, help="where the report goes (benchmarks/results/<date>-<machine>)"
    )
    parser.set_defaults(plan="usual")
    return parser.parse_args(arguments)


def results_folder(machine: Machine, today: date) -> Path:
    """Return benchmarks/results/<date>-<machine>, with -2, -3, ... if an earlier run has that folder.
    The path is relative to the working directory.
    """
    kind = machine.gpus[0].name if machine.gpus else f"{machine.cores}-cores"
    name = "-".join([today.isoformat(), *kind.lower().split()])
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    folders = (Path("benchmarks") / "results" / one for one in names)
    return next(folder for folder in folders if not (folder / RAW).exists())


def measure(asked: argparse.Namespace, console: Console) -> None:
    """Measure what the plan says and write the results. Raises RAGCacheError."""
    began_s, load, notes = time.monotonic(), os.getloadavg(), Phases(Console(stderr=True))
    machine, main = this_machine(), main_set()
    out = asked.out or results_folder(machine, date.today())

    def say(line: str) -> None:
        minutes = (time.monotonic() - began_s) / 60
        console.print(f"[dim]{minutes:5.1f} min[/dim] {escape(line)}", soft_wrap=True)

    plan = PLANS[asked.plan](main)
    plan = plan.only(asked.systems) if asked.systems else plan
    dtype = choose_dtype("auto", asked.backend, notes)
    model, form = prepare_model(DEMO_MODEL, asked.backend, notes)
    has_model = asked.backend == "vllm"
    sizes = Sizes(model, backend=asked.backend, dtype=dtype)
    tokenize = model_tokenizer(model) if has_model else split_words
    with tempfile.TemporaryDirectory(prefix="ragcache-bench-") as folder:
        corpora = Corpora(tokenize, form, sizes.context_tokens, Path(folder))
        abouts = summarize_traces(plan, corpora, asked.seed)
        out.mkdir(parents=True, exist_ok=True)
        (out / LOG).unlink(missing_ok=True)
        record = RunRecord(
            title=f"RAGCache against its baselines, {date.today().isoformat()} ({plan.name} run)",
            command=command_of(asked),
            machine=describe_machine(machine),
            versions=installed_versions(),
            sizes=Sizes(Path(model).name, backend=asked.backend, dtype=dtype),
            token_bytes=model_size(Path(model), dtype).kv_token_bytes if has_model else None,
            seen=Seen(),
            abouts=abouts,
            load_average=load,
        )

        def save() -> None:
            record.seconds = time.monotonic() - began_s
            if record.seen.plays:
                write_record(out, record, plan)
                write_report(out, record)

        # Treat SIGTERM like Ctrl-C, so that the measurements so far are written.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            bench = Bench(corpora, main, sizes, out / LOG, asked.seed, say)
            carry_out(plan, bench, record, save)
        finally:
            signal.signal(signal.SIGTERM, before)
            save()
    console.print(f"The report is {escape(str(out / REPORT))}", soft_wrap=True)


def split_words(texts: Sequence[str]) -> list[list[int]]:
    return [[hash(word) for word in text.split()] for text in texts]


def summarize_traces(plan: Plan, corpora: Corpora, seed: int) -> list[TraceSummary]:
    """Describe the requests drawn from every trace. Reads all question sets before anything starts."""
    counts: dict[TraceSpec, int] = {}
    for group in plan.groups:
        for part in group.parts:
            counts[part.trace] = max(group.drawn(part), counts.get(part.trace, 0))
    return [corpora.summarize(trace, count, seed) for trace, count in counts.items()]


def command_of(asked: argparse.Namespace) -> str:
    words = ["python", "benchmarks/compare.py"]
    words += [f"--{asked.plan}"] if asked.plan != "usual" else []
    words += ["--systems", *asked.systems] if asked.systems else []
    return shlex.join([*words, "--seed", str(asked.seed)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 after an error, 130 if interrupted."""
    asked = parse(arguments)
    silence_libraries()
    errors = Console(stderr=True, highlight=False)
    try:
        if asked.report:
            write_report(asked.report, read_record(asked.report))
        elif asked.out and (asked.out / RAW).exists():  # it took long, and must not be overwritten
            errors.print(
                f"{asked.out} has a run already: choose another --out, or move that folder"
            )
            return 1
        else:
            measure(asked, Console(highlight=False))
    except RAGCacheError as error:
        errors.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
