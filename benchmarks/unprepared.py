"""Measure reuse at any position where nobody has warmed anything: a stream of new questions.

    python benchmarks/unprepared.py --questions 120 --out FOLDER                  # real vLLM
    python benchmarks/unprepared.py --questions 1000 --every 10 --ways exact later --device-gib 1 \\
        --host-gib 5 --disk-gib 24 --dtype auto --out FOLDER
    python benchmarks/unprepared.py --questions 2621 --backend memory             # tokens alone, no model

Three engines get each question in turn, one at a time, each at rest: `exact` (reuse="prefix"), and two at
any position behind neighbours, with missing_donors="compute" and "later". The latter has idle time after
each of its answers, as between the questions of a person. Reports each quarter of the stream by itself:
what share of the tokens was computed for the answer, the time to the first token, and how alike the
answers are to the exact ones. With --every 10 all engines get all questions, and nine of ten are only
prefilled, without a pause: a stream of 1,000 then takes 42 minutes. All engines have the same memory;
what does not fit goes to a disk cache in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anywhere import OPTIONS
from programs import command_line
from prompt_sets import Question, find_nearest, read_set, tell_neighbours
from pydantic import ByteSize

from ragcache_cli.models import demo_model
from ragcache_engine import Answer, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.anywhere.rouge import rouge_l

EXACT, COMPUTE, LATER = "exact", "compute", "later"
WAYS = (EXACT, COMPUTE, LATER)
PARTS = 4
FIRST_TOKEN = replace(OPTIONS, max_tokens=1)
NEIGHBOURS = 3
"""So many each retriever tells."""
MOST_REST_S = 30.0
SPIN_S = 1.1
"""An idle model of vLLM's spins so long; it would take time from the engine asked next."""


def main() -> None:
    asked = _parse()
    corpus, questions = read_set(asked.set, asked.questions, asked.top_k)
    neighbours = find_nearest(corpus, NEIGHBOURS)
    rows: list[dict[str, Any]] = []
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        engines = {way: stack.enter_context(_start(way, asked)) for way in asked.ways}
        spin_s = 0.0 if asked.backend == "memory" else SPIN_S
        for number, question in enumerate(questions):
            if number % asked.every:
                for engine in engines.values():
                    _ask(engine, question, neighbours, FIRST_TOKEN)
            else:
                for engine in engines.values():
                    _wait_for_rest(engine, spin_s if asked.every > 1 else 0.0)
                turn = number // asked.every % len(engines)
                names = [*engines]
                answers: dict[str, Answer] = {}
                for way in names[turn:] + names[:turn]:
                    answers[way] = _ask(engines[way], question, neighbours, OPTIONS)
                    _wait_for_rest(engines[way], spin_s)
                rows += [_row(number, way, answers[way], answers[EXACT]) for way in answers]
                if asked.out:
                    (asked.out / "raw.json").write_text(json.dumps(rows))
            print(f"\r{number + 1} of {len(questions)} questions", end="", flush=True)
    print()
    text = report(rows, len(questions))
    print(text)
    if asked.out:
        (asked.out / "report.md").write_text(text)


@contextmanager
def _start(way: str, asked: argparse.Namespace) -> Iterator[RAGCacheEngine]:
    borrowing: dict[str, Any] = {}
    if way != EXACT:
        borrowing = {
            "reuse": "anywhere",
            "recompute_ratio": asked.ratio,
            "donors": "neighbours",
            "missing_donors": way,
            "recheck_share": 0,
        }
    of_model: dict[str, Any] = {"backend": "memory", "device_cache": ByteSize(200 << 30)}
    if asked.backend == "vllm":
        of_model = {
            "model": asked.model or str(demo_model()),
            "device_cache": ByteSize(asked.device_gib << 30),
            "host_cache": ByteSize(asked.host_gib << 30),
            "disk_cache": ByteSize(asked.disk_gib << 30),
            "vllm_args": {"dtype": asked.dtype, "max_model_len": 4096},
        }
    with tempfile.TemporaryDirectory() as folder:
        if asked.disk_gib:
            of_model["disk_cache_dir"] = folder
        with RAGCacheEngine(EngineConfig(speculation="off", **of_model, **borrowing)) as engine:
            yield engine


def _ask(
    engine: RAGCacheEngine,
    question: Question,
    neighbours: dict[str, list[Document]],
    options: SamplingOptions,
) -> Answer:
    tell_neighbours(engine, question.documents, neighbours)
    return engine.generate(question.prompt, question.documents, options)


def _wait_for_rest(engine: RAGCacheEngine, spin_s: float) -> None:
    deadline = time.monotonic() + MOST_REST_S
    while time.monotonic() < deadline:
        stats = engine.stats()
        if not (stats.unprepared or stats.found_unprepared):
            break
        time.sleep(0.01)
    time.sleep(spin_s)


def _row(number: int, way: str, answer: Answer, exact: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {
        "question": number,
        "way": way,
        "ttft_s": usage.ttft_s,
        "prompt_tokens": usage.prompt_tokens,
        "computed": usage.computed_tokens,
        "is_exact": usage.is_exact,
        "rouge_l": rouge_l(answer.text, exact.text),
        "exact_equal": answer.token_ids == exact.token_ids if usage.is_exact else None,
    }


def report(rows: Sequence[dict[str, Any]], questions: int) -> str:
    """Write a line for each engine and quarter; times also by pairs with the exact answer."""
    lines = [
        "| questions | engine | computed for answers, donors apart | answered exactly "
        "| TTFT ms, median (quartiles) | exact/this TTFT, median of pairs | ROUGE-L |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in range(PARTS):
        begin, end = (questions * at // PARTS for at in (part, part + 1))
        mine = [row for row in rows if begin <= row["question"] < end]
        exact = {row["question"]: row["ttft_s"] for row in mine if row["way"] == EXACT}
        for way in sorted({row["way"] for row in mine}, key=WAYS.index):
            of = [row for row in mine if row["way"] == way]
            low, middle, high = (
                1000 * value for value in statistics.quantiles([row["ttft_s"] for row in of], n=4)
            )
            pairs = [exact[row["question"]] / row["ttft_s"] for row in of]
            lines.append(
                f"| {begin + 1} to {end} | {way} "
                f"| {sum(row['computed'] for row in of) / sum(row['prompt_tokens'] for row in of):.2f} "
                f"| {statistics.fmean(row['is_exact'] for row in of):.2f} "
                f"| {middle:.0f} ({low:.0f} to {high:.0f}) "
                f"| {statistics.median(pairs):.2f} "
                f"| {statistics.fmean(row['rouge_l'] for row in of):.2f} |"
            )
    differ = sum(row["exact_equal"] is False for row in rows)
    lines.append(
        f"\nOf the answers that say they are exact, {differ} differ from the exact engine's."
    )
    return "\n".join(lines) + "\n"


def _parse() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--set", default="squad", help="one of them")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--top-k", type=int, default=5, help="documents of a question")
    parser.add_argument("--ratio", type=float, default=0.15, help="recompute_ratio")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="which engines")
    parser.add_argument("--backend", choices=("vllm", "memory"), default="vllm")
    parser.add_argument("--every", type=int, default=1, help="measure each n-th question")
    parser.add_argument("--device-gib", type=int, default=3, help="device cache of each engine")
    parser.add_argument("--host-gib", type=int, default=0, help="its host cache")
    parser.add_argument("--disk-gib", type=int, default=0, help="its disk cache")
    parser.add_argument("--dtype", default="float32", help="of model and cache")
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
