"""`ragcache bench`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ragcache_cli.commands.argument_types import WholeNumber, add_model, named_value

if TYPE_CHECKING:
    from ragcache_cli.bench.benchmark import Benchmark

SUMMARY = "measure RAGCache against vLLM's own caches, and report"
DESCRIPTION = (
    "Put the same questions to vLLM without a cache, with its prefix cache, with its own host "
    "offload, and to RAGCache; write raw figures, plots and report.md. "
    "Without --corpus the questions are the demo's, about Python."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every benchmark: of `ragcache bench`, and of the longer ones built on it."""
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", dest="plan", action="store_const", const="quick", help="14 minutes on two cores"
    )
    length.add_argument(
        "--anywhere",
        dest="plan",
        action="store_const",
        const="anywhere",
        help="reuse at any position alone, 11 to 16 minutes",
    )
    length.add_argument(
        "--parts",
        dest="plan",
        action="store_const",
        const="parts",
        help="RAGCache with one part changed at a time, about 9 minutes",
    )
    length.add_argument(
        "--full", dest="plan", action="store_const", const="full", help="the whole grid, days"
    )
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="your own files, as in ask")
    parser.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help='a question a line, or {"question": ..., "answer": ...}, asked of the corpus',
    )
    length.add_argument(
        "--report",
        type=Path,
        metavar="FOLDER",
        help="measure nothing: write report and plots of a run again from its raw figures",
    )
    add_model(parser)
    parser.add_argument(
        "--backend",
        choices=("vllm", "memory"),
        default="vllm",
        help="memory: no model and made-up answers, for trying out your files (%(default)s)",
    )
    parser.add_argument(
        "--device-cache",
        default="96MiB",
        metavar="SIZE",
        help="device memory of each system's cache (%(default)s)",
    )
    parser.add_argument(
        "--host-cache",
        default="384MiB",
        metavar="SIZE",
        help="host memory of each system that uses any (%(default)s)",
    )
    parser.add_argument(
        "--context",
        type=WholeNumber(),
        default=2048,
        metavar="N",
        help="most tokens of a prompt and its answer (%(default)s)",
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        metavar="NAME",
        help="put the questions to these alone: off (vLLM without a cache), on (its prefix cache), lru "
        "and arc (its host offload), ragcache, and more; a name that is none lists all",
    )
    parser.add_argument(
        "--vllm-arg",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of vLLM's for every system, such as load_format=dummy",
    )
    parser.add_argument(
        "--seed",
        type=WholeNumber(),
        default=1,
        metavar="N",
        help="draws the questions and when they come (%(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where figures and report go (benchmarks/results/<date>-<machine>)",
    )
    parser.set_defaults(plan="usual")


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.bench.benchmark import COMPARISON

    return run_benchmark(COMPARISON, parsed, console)


def run_benchmark(benchmark: Benchmark, parsed: argparse.Namespace, console: Console) -> int:
    """Measure, or write the report of a run again. parsed: arguments that `add_arguments` declared."""
    from ragcache_cli.bench.results import rewrite_report
    from ragcache_cli.bench.run import BenchSettings, measure
    from ragcache_cli.bench.systems import parse_size

    if parsed.report:
        report = rewrite_report(parsed.report, benchmark.sections)
        console.print(f"The report is {escape(str(report))}", soft_wrap=True)
        return 0
    settings = BenchSettings(
        plan=parsed.plan,
        corpus=parsed.corpus,
        questions=parsed.questions,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        device_bytes=parse_size(parsed.device_cache),
        host_bytes=parse_size(parsed.host_cache),
        context_tokens=parsed.context,
        systems=tuple(parsed.systems) if parsed.systems else None,
        out=parsed.output,
        vllm_args=dict(parsed.vllm_arg),
        seed=parsed.seed,
    )
    measure(benchmark, settings, console)
    return 0
