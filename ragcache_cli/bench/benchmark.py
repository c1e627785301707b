"""The parts of one benchmark; `ragcache bench` is one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragcache_cli.bench.closeness import study_closeness
from ragcache_cli.bench.context import RunContext
from ragcache_cli.bench.plan import CLOSENESS, PLANS, MakePlan, Plan
from ragcache_cli.bench.question_sets import DEMO, QuestionSet, demo_set
from ragcache_cli.bench.report.sections import SECTIONS, Section
from ragcache_cli.bench.systems import SYSTEMS, System
from ragcache_cli.bench.worker_client import Worker
from ragcache_cli.embedding import Embedder
from ragcache_cli.errors import CommandError
from ragcache_cli.folders import cache_home
from ragcache_cli.index import update_index
from ragcache_cli.python_topics import python_topics

LoadSet = Callable[[str, Embedder, int], QuestionSet]
"""Loads a question set by its name, for prompts of at most this many tokens."""
GroupStudy = Callable[[int, Sequence[Worker], RunContext], Any]
"""Asks a group's systems this many questions. Returns its results as JSON; None if it has none."""
LastStudy = Callable[[Plan, RunContext], Any]
"""Measures after all plays. Returns its results as JSON; None if it has none."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: systems, plans, questions, and the sections of its report.

    program: the words that start it on a command line. systems: what --systems may name.
    plans: by name, as in PLANS. main_set: the name of the question set with most requests,
    unless users give their own questions. group_studies, last_studies: by the name that their results
    get in the record; Group.studies names the former. sections: of the report, in order.
    left_out: returns lines about what a plan does not measure, and how to measure it.
    packages: packages whose versions the report shows besides the usual ones.
    """

    program: tuple[str, ...]
    systems: Mapping[str, System]
    plans: Mapping[str, MakePlan]
    main_set: str
    load_set: LoadSet
    sections: Sequence[Section]
    left_out: Callable[[Plan], list[str]]
    group_studies: Mapping[str, GroupStudy] = field(default_factory=dict)
    last_studies: Mapping[str, LastStudy] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


def load_demo_set(name: str, embedder: Embedder, context_tokens: int) -> QuestionSet:
    """Load the demo's questions with the index of Python's help topics."""
    if name != DEMO:
        raise CommandError(f"there is no question set {name!r}")
    index = update_index(cache_home() / "python-topics", python_topics(), embedder).index
    return demo_set(index, embedder)


def list_left_out(plan: Plan) -> list[str]:
    """List what a plan does not measure, and how to measure it; see Benchmark.left_out."""
    lines = []
    if plan.name == "quick":
        lines.append(
            "everything but one trace at two rates, and answers in float32: `ragcache bench` without "
            "--quick takes up to an hour"
        )
    if plan.name in ("anywhere", "parts"):
        lines.append(
            "everything else: `ragcache bench` compares RAGCache with vLLM's own caches, reuse at any "
            "position among it, in up to an hour"
        )
    if plan.name not in ("parts", "full"):
        lines.append(
            "RAGCache with one part changed at a time: `ragcache bench --parts`, about 9 minutes"
        )
    if plan.name != "full":
        lines.append(
            "the whole grid (top-1 to 5, three skews, six rates, every system): "
            "`ragcache bench --full`, days on two cores"
        )
    return [
        *lines,
        "the paper's goals, growth and more question sets: `make bench` in a checkout of the repository; "
        "quality of reordered answers: `make bench-parts` there",
        "LMCache: docs/benchmarks.md says what stops it on a CPU",
    ]


COMPARISON = Benchmark(
    program=("ragcache", "bench"),
    systems=SYSTEMS,
    plans=PLANS,
    main_set=DEMO,
    load_set=load_demo_set,
    sections=SECTIONS,
    left_out=list_left_out,
    group_studies={CLOSENESS: study_closeness},
)
"""`ragcache bench`: on the user's own files and questions, or on the demo's."""
