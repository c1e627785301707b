"""Asks for free answers to the main question set: of the model's own length, from an empty cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comparing.context import RunContext
from comparing.drive import start_systems
from comparing.figures import Differing
from comparing.plan import SKEW
from comparing.systems import FULL, OFF
from comparing.worker_client import Worker
from comparing.workload import Request, draw_questions

TOP_K = 2
LONGEST_TOKENS = 24


def choose_questions(count: int, context: RunContext) -> list[int]:
    """Draw questions as unevenly as the main trace does, so that caches have something to reuse."""
    questions = len(context.corpora.ready(context.main, TOP_K).found)
    return draw_questions(questions, count, SKEW, context.seed)


def ask_freely(
    workers: Sequence[Worker], count: int, context: RunContext
) -> Mapping[str, list[dict[str, Any]]]:
    """Ask every system the same questions, several at a time. Returns their answers by system."""
    ready, sizes = context.corpora.ready(context.main, TOP_K), context.sizes
    requests = [Request(number, 0.0, LONGEST_TOKENS) for number in choose_questions(count, context)]
    found = {}
    for worker in workers:
        worker.prepare(ready.prepared.folder, TOP_K)
        worker.clear()
        found[worker.system.key] = worker.play(requests, sizes.at_once, ignore_eos=False)
        context.say(f"{count} free answers of {worker.system.name} in {sizes.dtype}")
    return found


def compare_in_float32(count: int, context: RunContext) -> list[Differing]:
    """Count answers of RAGCache that differ from those of vLLM without a cache, both in float32.

    In float32 arithmetic is exact enough that batches do not matter, so no answer may differ.
    """
    sizes = replace(context.sizes, dtype="float32", device_bytes=2 * context.sizes.device_bytes)
    with start_systems((OFF, FULL), sizes, context.log, context.say) as workers:
        answers = ask_freely(workers, count, replace(context, sizes=sizes))
    texts = {key: [answer["text"] for answer in each] for key, each in answers.items()}
    first = next(iter(texts))
    return [
        Differing(first, key, sum(a != b for a, b in zip(texts[first], each, strict=True)), count)
        for key, each in texts.items()
        if key != first
    ]
