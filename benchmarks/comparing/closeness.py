"""Compares answers with those of vLLM in full: how close are approximate ones?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from comparing.context import RunContext
from comparing.grading import contained
from comparing.systems import OFF
from comparing.worker_client import Worker
from comparing.workload import Request, draw_questions
from ragcache_engine.anywhere.rouge import rouge_l

TOP_K = 5
LONGEST_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Closeness:
    """A system's answers beside those of vLLM without a cache.

    equal: how many of `asked` are the same to the character. rouge_l: the mean.
    contained: the share that contains an accepted answer, of the questions that have one; None if none
      has.
    """

    asked: int
    equal: int
    rouge_l: float
    contained: float | None


def compare(
    texts: Sequence[str], full: Sequence[str], accepted: Sequence[Sequence[str]]
) -> Closeness:
    """Compare answers with those in full. accepted: for each question the accepted answers, or none."""
    graded = [
        any(contained(text, gold) for gold in golds)
        for text, golds in zip(texts, accepted, strict=True)
        if golds
    ]
    pairs = list(zip(texts, full, strict=True))
    return Closeness(
        asked=len(pairs),
        equal=sum(text == wanted for text, wanted in pairs),
        rouge_l=statistics.fmean(
            1.0 if text == wanted else rouge_l(text, wanted) for text, wanted in pairs
        ),
        contained=statistics.fmean(graded) if graded else None,
    )


def study_closeness(
    count: int, workers: Sequence[Worker], context: RunContext, *, of: str | None = None
) -> dict[str, Any] | None:
    """Ask every system the same questions, for answers of the model's own length.

    of: the name of the question set; None: the main one.
    Returns a Closeness for each system, as JSON; None without vLLM's answers in full.
    """
    if OFF.key not in [worker.system.key for worker in workers]:
        return None
    ready = context.corpora.ready(of or context.main, TOP_K)
    numbers = draw_questions(len(ready.found), count, None, context.seed)
    accepted = [ready.given.questions[number].answers for number in numbers]
    requests = [Request(number, 0.0, LONGEST_TOKENS) for number in numbers]
    texts: dict[str, list[str]] = {}
    for worker in workers:
        worker.prepare(ready.prepared.folder, TOP_K)
        played = worker.play(requests, context.sizes.at_once, ignore_eos=False)
        texts[worker.system.key] = [answer["text"] for answer in played]
        context.say(f"{count} answers of {worker.system.name} to compare")
    full = texts[OFF.key]
    return {key: asdict(compare(found, full, accepted)) for key, found in texts.items()}
