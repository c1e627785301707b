"""Compare RAGCache with vLLM's own caches: the same questions, at the same times, to each.

    python benchmarks/compare.py                   # `make bench`: about 45 minutes, a quiet machine
    python benchmarks/compare.py --quick           # `make bench-quick`: one trace, 14 minutes
    python benchmarks/compare.py --anywhere        # `make bench-anywhere`: reuse at any position
    python benchmarks/compare.py --parts           # `make bench-parts`: RAGCache with parts changed
    python benchmarks/compare.py --report FOLDER   # the report of a run again, from its raw figures

Without --corpus the questions come from the shared question sets in the folder that RAGCACHE_DATA names,
or from the demo if there are none. Writes raw figures, plots and report.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from comparing.results import rewrite_report
from comparing.run import BenchSettings, measure
from comparing.systems import parse_size
from rich.console import Console
from rich.markup import escape

from ragcache_cli.commands.argument_types import WholeNumber, add_model, named_value
from ragcache_cli.logging_setup import silence_libraries
from ragcache_engine import RAGCacheError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to ask, of what, and how long."""
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


def run(parsed: argparse.Namespace, console: Console) -> None:
    """Measure, or write the report of a run again. Raises RAGCacheError."""
    if parsed.report:
        report = rewrite_report(parsed.report)
        console.print(f"The report is {escape(str(report))}", soft_wrap=True)
        return
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
    measure(settings, console)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 after an error, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    # Systems run in processes of their own, which import from this folder.
    found_first = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(found_first)
    silence_libraries()
    errors = Console(stderr=True, highlight=False)
    try:
        run(parsed, Console(highlight=False))
    except RAGCacheError as error:
        errors.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130
    return 0


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    sys.exit(main())
