"""Measure our own way to the model: what RAGCache adds to vLLM's offload when everything is cached.

    python benchmarks/overhead.py                  # `make bench-overhead`: 10 minutes, a quiet machine

The same LangChain chain asks the same questions of vLLM with its own host offload and of RAGCache, one
at a time and in turn, question by question. All prompts are cached, so that a request costs one step of
the model and the way to it and back. The way is cut into stages:

  search      from the question to the retriever's documents
  prompt      joining the documents and filling the template
  hand over   from the LLM's call to vLLM's: tokens, documents, the engine's thread
  model       from there to vLLM's first output: its queue, scheduler, step and detokenizer
  back        from there to the chain's first piece

Each request waits until the other side's processes are at rest: vLLM's CPU worker waits for its next
step without sleeping, for a second. A chain that guesses its prompt calls vLLM before its LLM is called;
then `hand over` is negative.

Reported are the medians with quartiles, and for each stage the difference in pairs. The first rounds are
not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from comparing.benchmark import load_set
from comparing.corpora import Corpora
from comparing.corpus_files import StoredSet
from comparing.question_sets import DEMO, LazyEmbedder, QuestionSet
from comparing.report.markdown import table
from comparing.running_system import RunningSystem
from comparing.shared_sets import SETS, data_folder
from comparing.systems import FULL, LRU, Sizes, System, choose_systems
from comparing.systems import SYSTEMS as KNOWN
from langchain_core.callbacks import AsyncCallbackHandler
from rich.console import Console

from ragcache_cli import embedding
from ragcache_cli.logging_setup import silence_libraries
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.models import DEMO_MODEL
from ragcache_cli.processor_time import children_s, wait_for_rest
from ragcache_cli.terminal import Phases

STAGES = ("search", "prompt", "hand over", "model", "back")
WHOLE = "first piece"
WARM_ROUNDS = 3
"""The first round computes the prompts; the next ones let both sides learn what they can."""
DEVICE_BYTES, HOST_BYTES = 512 << 20, 512 << 20
"""Room for all prompts on the device."""


@dataclass(slots=True)
class Marks:
    """When a request passed each point of its way, in seconds of the performance counter."""

    asked: float = 0.0
    found: float = 0.0
    llm_called: float = 0.0
    vllm_called: float = 0.0
    first_output: float = 0.0
    first_piece: float = 0.0

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage, and of all together."""
        passed = (
            self.asked, self.found, self.llm_called,
            self.vllm_called, self.first_output, self.first_piece,
        )  # fmt: skip
        between = [end - start for start, end in pairwise(passed)]
        return {
            **dict(zip(STAGES, between, strict=True)),
            WHOLE: self.first_piece - self.asked,
        }


class Listener(AsyncCallbackHandler):
    """Marks when the chain's retriever ends and its LLM is called."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    async def on_retriever_end(self, *_: Any, **__: Any) -> None:
        self._marks.found = time.perf_counter()

    async def on_llm_start(self, *_: Any, **__: Any) -> None:
        self._marks.llm_called = time.perf_counter()


@contextmanager
def marked_vllm(current: Callable[[], Marks]) -> Any:
    """Mark each call of vLLM's `generate` and its first output, within the block."""
    from vllm.v1.engine.async_llm import AsyncLLM

    generate = AsyncLLM.generate

    async def marked(self: Any, *arguments: Any, **named: Any) -> AsyncIterator[Any]:
        marks, is_first = current(), True
        # A guess may call before the LLM does; the call that counts is the last one before an output.
        marks.vllm_called = marks.vllm_called or time.perf_counter()
        async with aclosing(generate(self, *arguments, **named)) as outputs:
            async for output in outputs:
                if is_first:
                    is_first = False
                    marks.first_output = marks.first_output or time.perf_counter()
                yield output

    AsyncLLM.generate = marked  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        AsyncLLM.generate = generate  # type: ignore[method-assign]


@dataclass(slots=True)
class Side:
    """One system and its chain over the questions."""

    system: System
    running: RunningSystem
    chain: Any = None
    took: list[dict[str, float]] = field(default_factory=list)


async def ask(side: Side, question: str, set_current: Callable[[Marks], None]) -> Marks:
    marks = Marks()
    set_current(marks)
    config = {"callbacks": [Listener(marks)]}
    marks.asked = time.perf_counter()
    async with aclosing(side.chain.astream(question, config=config)) as pieces:
        async for _ in pieces:
            marks.first_piece = marks.first_piece or time.perf_counter()
    return marks


async def compare(asked: argparse.Namespace, console: Console) -> list[Side]:
    sizes, folder, stop = await asyncio.to_thread(prepare, asked)
    current = Marks()

    def set_current(marks: Marks) -> None:
        nonlocal current
        current = marks

    sides = [Side(one, RunningSystem(one, sizes)) for one in asked.systems]
    try:
        for side in sides:
            console.print(f"Starting {side.system.name}")
            await side.running.start()
            side.running.prepare(folder, asked.top_k)
            side.chain = side.running.chain_for(asked.tokens, ignore_eos=True)
        questions = StoredSet.read(folder).questions[: asked.questions]
        with marked_vllm(lambda: current):
            for number in range(WARM_ROUNDS + asked.rounds):
                counts = number >= WARM_ROUNDS
                for at, question in enumerate(questions):
                    for side in sides[:: 1 if (number + at) % 2 else -1]:
                        await asyncio.to_thread(wait_for_rest, children_s)
                        marks = await ask(side, question, set_current)
                        if counts:
                            side.took.append(marks.stages())
                console.print(f"Round {number + 1} of {WARM_ROUNDS + asked.rounds}")
    finally:
        for side in sides:
            await side.running.close()
        stop()
    return sides


def prepare(asked: argparse.Namespace) -> tuple[Sizes, Path, Callable[[], None]]:
    """Write the questions as files. Returns the sizes, their folder, and what deletes it."""
    notes = Phases(Console(stderr=True))
    model, form = prepare_model(DEMO_MODEL, "vllm", notes)
    sizes = Sizes(model=model, device_bytes=DEVICE_BYTES, host_bytes=HOST_BYTES)
    embedder = LazyEmbedder(embedding.load_embedder, embedding.MiniLM.name)

    def load(name: str) -> QuestionSet:
        return load_set(name, embedder, sizes.context_tokens)

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in tokenizer(list(texts))["input_ids"]]

    folder = tempfile.TemporaryDirectory(prefix="ragcache-overhead-")
    corpora = Corpora(load, tokenize, form, model, sizes.context_tokens, Path(folder.name))
    return sizes, corpora.ready(asked.set, asked.top_k).prepared.folder, folder.cleanup


def summarize(sides: Sequence[Side]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return for each system, and for the difference, p25, median and p75 of each stage in seconds."""
    theirs, ours = (side.took for side in sides)
    rows = {side.system.name: side.took for side in sides}
    rows["added"] = [
        {stage: mine[stage] - other[stage] for stage in mine}
        for other, mine in zip(theirs, ours, strict=True)
    ]
    return {
        name: {stage: _quartiles([one[stage] for one in took]) for stage in (*STAGES, WHOLE)}
        for name, took in rows.items()
    }


def _quartiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return low, middle, high


def report(sides: Sequence[Side]) -> str:
    summary = summarize(sides)
    rows = [
        [stage, *(_cell(summary[name][stage]) for name in summary)] for stage in (*STAGES, WHOLE)
    ]
    head = ["ms: median (quartiles)", *summary]
    lines = [f"{len(sides[0].took)} pairs of requests, one at a time", "", *table(head, rows)]
    return "\n".join(lines)


def _cell(quartiles: tuple[float, float, float]) -> str:
    low, middle, high = (1e3 * one for one in quartiles)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--set", choices=[DEMO, *SETS], help="default: squad, or the demo without it"
    )
    parser.add_argument("--questions", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=10, help="that count")
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4, help="of each answer")
    parser.add_argument(
        "--systems", nargs=2, default=[LRU.key, FULL.key], metavar="KEY", help="theirs, then ours"
    )
    parser.add_argument("--out", type=Path, help="a folder for overhead.json and overhead.md")
    asked = parser.parse_args()
    asked.set = asked.set or ("squad" if data_folder() else DEMO)
    asked.systems = choose_systems(asked.systems, KNOWN)
    silence_libraries()
    sides = asyncio.run(compare(asked, Console(highlight=False, stderr=True)))
    text = report(sides)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "overhead.md").write_text(text + "\n")
        raw = {side.system.key: side.took for side in sides}
        (asked.out / "overhead.json").write_text(json.dumps(raw))
    print(text)
    return 0


if __name__ == "__main__":  # vLLM starts processes that import this file again
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.exit(main())
