"""Write the whole report: `ragcache bench` with the paper's goals, more studies, peers and question
sets.

    python benchmarks/full_report.py                   # `make bench`: about 45 minutes, a quiet machine
    python benchmarks/full_report.py --quick           # `make bench-quick`: one trace, 14 minutes
    python benchmarks/full_report.py --anywhere        # `make bench-anywhere`: reuse at any position
    python benchmarks/full_report.py --parts           # `make bench-parts`: RAGCache with parts changed
    python benchmarks/full_report.py --report FOLDER   # the report of a run again, from its raw figures

It takes the arguments of `ragcache bench`. Without --corpus the questions come from the shared question
sets in the folder that RAGCACHE_DATA names, or from the demo if there are none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from studies import contextpilot_order
from studies.full_plans import (
    FULL_PLANS,
    GROWTH,
    HIDDEN_SEARCH,
    OTHER_CLOSENESS,
    OTHER_SET,
    QUALITY,
)
from studies.goals import goals
from studies.growth import growth, study_growth
from studies.hidden_search import hidden_search, study_hidden_search
from studies.quality import answers_and_quality, study_quality
from studies.shared_sets import MAIN_SET, data_folder, load_shared_set

from ragcache_cli.bench.benchmark import Benchmark, load_demo_set
from ragcache_cli.bench.closeness import study_closeness
from ragcache_cli.bench.plan import CLOSENESS, Plan
from ragcache_cli.bench.question_sets import DEMO, QuestionSet
from ragcache_cli.bench.report.any_position import any_position
from ragcache_cli.bench.report.costs import costs
from ragcache_cli.bench.report.run_description import head, method, traces
from ragcache_cli.bench.report.shortfalls import not_better
from ragcache_cli.bench.report.system_tables import ablations, main_part, sweeps, throughputs
from ragcache_cli.bench.systems import SYSTEMS
from ragcache_cli.commands import bench
from ragcache_cli.embedding import Embedder
from ragcache_cli.logging_setup import silence_libraries
from ragcache_engine import RAGCacheError

SECTIONS = (
    head,
    goals,
    not_better,
    main_part,
    throughputs,
    sweeps,
    ablations,
    any_position,
    answers_and_quality,
    hidden_search,
    costs,
    growth,
    traces,
    method,
)


def full_benchmark() -> Benchmark:
    """Return the benchmark of the full report, with the question sets and peers of this machine."""
    return Benchmark(
        program=("python", "benchmarks/full_report.py"),
        systems={**SYSTEMS, contextpilot_order.CONTEXTPILOT.key: contextpilot_order.CONTEXTPILOT},
        plans=FULL_PLANS,
        main_set=MAIN_SET if data_folder() else DEMO,
        load_set=load_set,
        sections=SECTIONS,
        left_out=list_left_out,
        group_studies={
            CLOSENESS: study_closeness,
            OTHER_CLOSENESS: partial(study_closeness, of=OTHER_SET),
            QUALITY: study_quality,
            HIDDEN_SEARCH: study_hidden_search,
        },
        last_studies={GROWTH: study_growth},
        packages=(contextpilot_order.PACKAGE,),
    )


def load_set(name: str, embedder: Embedder, context_tokens: int) -> QuestionSet:
    """Load the demo's questions, or one of the shared sets."""
    if name == DEMO:
        return load_demo_set(name, embedder, context_tokens)
    return load_shared_set(name, embedder, context_tokens)


def list_left_out(plan: Plan) -> list[str]:
    """List what a plan does not measure, and how to measure it."""
    lines = []
    if plan.name == "quick":
        lines.append(
            "everything but one trace at two rates; answers in float32: `make bench`, about 45 minutes"
        )
    if plan.name in ("anywhere", "parts"):
        lines.append(
            "everything else: `make bench` compares RAGCache with vLLM's own caches, about 45 minutes"
        )
    if plan.name not in ("parts", "full"):
        lines.append(
            "RAGCache with parts changed, quality of reordered answers, the search hidden by prefill, "
            "costs by the number of documents: `make bench-parts`, about 10 minutes"
        )
    if plan.name != "full":
        lines.append(
            "the whole grid (four question sets, top-1 to 5, three skews, six rates, every system): "
            "`python benchmarks/full_report.py --full`, days on two cores"
        )
    if not contextpilot_order.is_installed():
        lines.append("ContextPilot: it is not installed here (`pip install contextpilot`)")
    return [
        *lines,
        "LMCache: docs/benchmarks.md says what stops it on a CPU",
        "a GPU: `make bench-gpu`",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write a report again. Returns the exit code: 1 after an error, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    bench.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    # Systems run in processes of their own, which import ContextPilot's step from this folder.
    found_first = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(found_first)
    silence_libraries()
    errors = Console(stderr=True, highlight=False)
    try:
        return bench.run_benchmark(full_benchmark(), parsed, Console(highlight=False))
    except RAGCacheError as error:
        errors.print(f"[bold red]error:[/bold red] {escape(str(error))}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        errors.print("interrupted")
        return 130


# vLLM starts processes that import this file again.
if __name__ == "__main__":
    sys.exit(main())
