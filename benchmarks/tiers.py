"""Measure what reordering a queue gains, and what a disk cache is worth after a restart.

    python benchmarks/tiers.py --out benchmarks/results/tiers            # ten minutes

Bursts of questions, half of them with cached documents, wait in a queue that is reordered, and in one
that is not. And an engine with a disk cache is asked, closed, started again and asked again.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from comparing.workload import measure_skew
from programs import command_line, keep
from question_files import read_asked
from same_answers import FORM
from tables import table

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions, Usage

TOP_K = 2
CONTEXT_TOKENS = 1024
DEVICE_BYTES = 56 << 20
HOST_BYTES = 256 << 20
OPTIONS = SamplingOptions(max_tokens=2, ignore_eos=True)
BURST = 48
AT_ONCE = 4
MEASURES = ("mean", "p50", "p99")


@dataclass(frozen=True, slots=True)
class PreparedQuestion:
    """A question with the documents that search found for it."""

    question: str
    documents: tuple[Document, ...]

    @property
    def prompt(self) -> str:
        return FORM.filled([document.text for document in self.documents], self.question)


def draw_trace(count: int, skew: float | None, seed: int = 1) -> list[PreparedQuestion]:
    """Take questions of squad in their order (skew None), or draw them with Zipf weights.

    skew: the exponent of the weights.
    """
    found = read_asked("squad", TOP_K)
    if skew is None:
        chosen = found[:count]
    else:
        weights = [(rank + 1) ** -skew for rank in range(len(found))]
        chosen = random.Random(seed).choices(found, weights, k=count)
    return [
        PreparedQuestion(
            one.question["query"], tuple(Document(*item) for item in one.texts().items())
        )
        for one in chosen
    ]


def describe_skew(asked: Sequence[PreparedQuestion]) -> str:
    """Say how unevenly a trace asks for documents, because the figures depend on that."""
    skew = measure_skew([[document.id for document in one.documents] for one in asked], 1)
    return (
        f"{len(asked)} questions, {skew.documents} documents, of which {skew.head} take 60% of the "
        f"retrievals; {skew.sets} different sets"
    )


def start(model: str, **settings: Any) -> RAGCacheEngine:
    config = EngineConfig(
        model=model,
        device_cache=DEVICE_BYTES,
        host_cache=HOST_BYTES,
        vllm_args={"max_model_len": CONTEXT_TOKENS, "max_num_seqs": AT_ONCE},
        **settings,
    )
    return RAGCacheEngine(config)


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    figures = fmean(seconds), median(seconds), quantiles(seconds, n=100)[-1]
    return dict(zip(MEASURES, figures, strict=True))


def measure_restart(model: str, asked: Sequence[PreparedQuestion]) -> dict[str, Any]:
    """Ask an engine 40 different questions, close it, start it again, and ask the same ones."""
    different = list({one.documents: one for one in asked}.values())[:40]
    lives: list[list[Usage]] = []
    with TemporaryDirectory() as folder:
        disk = {"disk_cache": 2 << 30, "disk_cache_dir": Path(folder)}
        for _ in range(2):
            with start(model, **disk) as engine:
                answers = [engine.generate(a.prompt, list(a.documents), OPTIONS) for a in different]
                lives.append([answer.usage for answer in answers])
    return {
        name: summarize([usage.ttft_s for usage in life])
        | {
            "disk_share": sum(usage.cached.disk for usage in life)
            / sum(usage.prompt_tokens for usage in life)
        }
        for name, life in zip(("first life", "second life"), lives, strict=True)
    }


def measure_reordering(
    model: str, asked: Sequence[PreparedQuestion], rounds: int
) -> dict[str, Any]:
    """Ask bursts of questions, half of them with cached documents. Returns the TTFT with each queue."""
    windows = {"reordered": 32, "first come": 1}
    times: dict[str, dict[str, list[float]]] = {
        name: {"all": [], "cold": [], "warm": []} for name in windows
    }
    with ExitStack() as engines:
        up = {
            name: engines.enter_context(start(model, reorder_window=window))
            for name, window in windows.items()
        }
        for number in range(rounds):
            burst = random.Random(number).sample(list(asked), BURST)
            warm = burst[::2]
            names = list(up)
            for name in names if number % 2 else reversed(names):
                engine = up[name]
                engine.clear_cache()
                for one in warm:
                    engine.generate(one.prompt, list(one.documents), OPTIONS)
                for one, ttft_s in zip(burst, asyncio.run(_ask_burst(engine, burst)), strict=True):
                    times[name]["all"].append(ttft_s)
                    times[name]["warm" if one in warm else "cold"].append(ttft_s)
            print(f"  round {number + 1} of {rounds}", file=sys.stderr)
    return {
        name: {kind: summarize(seconds) for kind, seconds in kinds.items()}
        for name, kinds in times.items()
    }


async def _ask_burst(engine: RAGCacheEngine, burst: Sequence[PreparedQuestion]) -> list[float]:
    answers = await asyncio.gather(
        *(engine.agenerate(one.prompt, list(one.documents), OPTIONS) for one in burst)
    )
    return [answer.usage.ttft_s for answer in answers]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--questions", type=int, default=160)
    parser.add_argument("--skew", type=float, default=1.0, help="Zipf exponent; 0: as they came")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tiers"))
    arguments = parser.parse_args()
    from ragcache_cli.models import demo_model

    model = str(demo_model())
    asked = draw_trace(arguments.questions, arguments.skew or None)
    print(f"Trace: {describe_skew(asked)} (Zipf {arguments.skew})")
    queues = measure_reordering(model, asked, arguments.rounds)
    rows = [
        [name, kind, *(f"{seconds:.2f}" for seconds in row.values())]
        for name, kinds in queues.items()
        for kind, row in kinds.items()
    ]
    about = f"TTFT in a burst of {BURST}, {AT_ONCE} at a time, half of them cached, s"
    lines = [about, "", *table(["queue", "prompts", *MEASURES], rows)]
    print("", *lines, sep="\n")
    keep(arguments.out, "reordering", lines, queues)
    lives = measure_restart(model, asked)
    rows = [
        [name, *(f"{row[measure]:.3f}" for measure in MEASURES), f"{row['disk_share']:.0%}"]
        for name, row in lives.items()
    ]
    about = "TTFT of the same questions in two lives of an engine with a disk cache, s"
    lines = [about, "", *table(["life", *MEASURES, "tokens from disk"], rows)]
    print("", *lines, sep="\n")
    keep(arguments.out, "restart", lines, lives)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0" if os.cpu_count() == 2 else "1")
    main()
