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
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from comparing.questions import Corpora, QuestionSet, main_set, model_tokenizer
from comparing.running_system import RunningSystem
from comparing.systems import FULL, LRU, Sizes, System
from langchain_core.callbacks import AsyncCallbackHandler
from programs import command_line, keep
from rich.console import Console
from tables import spread, table

from ragcache_cli.logging_setup import silence_libraries
from ragcache_cli.model_prompts import prepare_model
from ragcache_cli.models import DEMO_MODEL
from ragcache_cli.processor_time import children_s, wait_for_rest
from ragcache_cli.prompts import PromptForm
from ragcache_cli.terminal import Phases

STAGES = ("search", "prompt", "hand over", "model", "back")
WHOLE = "first piece"
WARM_ROUNDS = 3
"""The first round computes the prompts; the next ones let both sides learn what they can."""
DEVICE_BYTES, HOST_BYTES = 512 << 20, 512 << 20
"""Room for all prompts on the device."""
TOP_K, ANSWER_TOKENS = 2, 4


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
    with tempfile.TemporaryDirectory(prefix="ragcache-overhead-") as scratch:
        sizes, folder, form = await asyncio.to_thread(prepare, Path(scratch))
        current = Marks()

        def set_current(marks: Marks) -> None:
            nonlocal current
            current = marks

        sides = [Side(one, RunningSystem(one, sizes)) for one in (LRU, FULL)]
        try:
            for side in sides:
                console.print(f"Starting {side.system.name}")
                await side.running.start()
                side.running.prepare(str(folder), TOP_K, asdict(form))
                side.chain = side.running.chain_for(ANSWER_TOKENS, ignore_eos=True)
            questions = QuestionSet.read(folder).questions[: asked.questions]
            with marked_vllm(lambda: current):
                for number in range(WARM_ROUNDS + asked.rounds):
                    for at, question in enumerate(questions):
                        for side in sides[:: 1 if (number + at) % 2 else -1]:
                            await asyncio.to_thread(wait_for_rest, children_s)
                            marks = await ask(side, question, set_current)
                            if number >= WARM_ROUNDS:
                                side.took.append(marks.stages())
                    console.print(f"Round {number + 1} of {WARM_ROUNDS + asked.rounds}")
        finally:
            for side in sides:
                await side.running.close()
    return sides


def prepare(folder: Path) -> tuple[Sizes, Path, PromptForm]:
    """Write the questions as files. Returns the sizes, where the files are, and the prompts' form."""
    model, form = prepare_model(DEMO_MODEL, "vllm", Phases(Console(stderr=True)))
    sizes = Sizes(model=model, device_bytes=DEVICE_BYTES, host_bytes=HOST_BYTES)
    corpora = Corpora(model_tokenizer(model), form, sizes.context_tokens, folder)
    return sizes, corpora.ready(main_set(), TOP_K).folder, form


def differences(sides: Sequence[Side]) -> list[dict[str, float]]:
    """Return what the second side's requests took longer than the first one's, stage by stage."""
    theirs, ours = (side.took for side in sides)
    return [
        {stage: mine[stage] - other[stage] for stage in mine}
        for other, mine in zip(theirs, ours, strict=True)
    ]


def report(sides: Sequence[Side]) -> str:
    columns = {side.system.name: side.took for side in sides} | {"added": differences(sides)}
    rows = [
        [stage, *(spread([one[stage] for one in took], times=1e3) for took in columns.values())]
        for stage in (*STAGES, WHOLE)
    ]
    head = ["ms: median (quartiles)", *columns]
    lines = [f"{len(sides[0].took)} pairs of requests, one at a time", "", *table(head, rows)]
    return "\n".join(lines)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--questions", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=10, help="that count")
    parser.add_argument("--out", type=Path, help="a folder for overhead.json and overhead.md")
    asked = parser.parse_args()
    silence_libraries()
    sides = asyncio.run(compare(asked, Console(highlight=False, stderr=True)))
    text = report(sides)
    keep(asked.out, "overhead", [text], {side.system.key: side.took for side in sides})
    print(text)


if __name__ == "__main__":  # vLLM starts processes that import this file again
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
