"""Which questions are asked, which studies there are, and what a plan leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from comparing.closeness import study_closeness
from comparing.context import RunContext
from comparing.plan import CLOSENESS, OTHER_CLOSENESS, OTHER_SET, SQUAD, Plan
from comparing.question_sets import DEMO, QuestionSet, demo_set
from comparing.shared_sets import data_folder, load_shared_set
from comparing.worker_client import Worker
from ragcache_cli.embedding import Embedder
from ragcache_cli.folders import cache_home
from ragcache_cli.index import update_index
from ragcache_cli.python_topics import python_topics

Study = Callable[[int, Sequence[Worker], RunContext], Any]
"""Asks a group's systems this many questions. Returns its results as JSON; None if it has none."""
STUDIES: Mapping[str, Study] = {
    CLOSENESS: study_closeness,
    OTHER_CLOSENESS: partial(study_closeness, of=OTHER_SET),
}
"""By the name that their results get in the record; Group.studies names them."""


def main_set() -> str:
    """Return the name of the set with most questions: squad, or without shared sets the demo's."""
    return SQUAD if data_folder() else DEMO


def load_set(name: str, embedder: Embedder, context_tokens: int) -> QuestionSet:
    """Load the demo's questions, or a shared set, for prompts of at most this many tokens."""
    if name != DEMO:
        return load_shared_set(name, embedder, context_tokens)
    return load_demo_set(embedder)


def load_demo_set(embedder: Embedder) -> QuestionSet:
    """Load the demo's questions with the index of Python's help topics."""
    index = update_index(cache_home() / "python-topics", python_topics(), embedder).index
    return demo_set(index, embedder)


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
    if plan.name != "parts":
        lines.append("RAGCache with parts changed: `make bench-parts`, about 10 minutes")
    return [
        *lines,
        "LMCache: docs/benchmarks.md says what stops it on a CPU",
        "a GPU: `make bench-gpu`",
    ]
