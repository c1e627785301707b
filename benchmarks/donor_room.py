"""Measure how many documents' donors a tier holds, in the cache's type and in int8.

    python benchmarks/donor_room.py --set squad --questions 1000

A stream of real questions with their five nearest passages runs through vLLM's scheduler around a model
that computes nothing (without_model.py), one question at a time, nothing warmed, and donors computed
before they are borrowed. The host tier is so large as a part of what all donors and their neighbours take
in the cache's type. Told of the second half of the questions: which share of the documents behind the
first one was borrowed from donors that some tier had, and how many prompt tokens a question computed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any

from programs import command_line
from prompt_sets import ASK, SEPARATOR, SYSTEM, USER, Question, find_nearest, read_set
from question_files import SETS
from tables import table
from tokenizers import Tokenizer

from ragcache_cli.models import demo_model
from ragcache_engine.tiers.borrowing.context import Context

BLOCK_TOKENS, DEVICE_TOKENS, RATIO = 16, 16_384, 0.1
PARTS = (0.05, 0.1, 0.2, 0.4)
HEADS = ("host tier", "donors", "found in a tier", "computed a question")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--set", choices=SETS, default="squad")
    parser.add_argument("--questions", type=int, default=1000)
    asked = parser.parse_args()
    corpus, questions = read_set(asked.set, asked.questions)
    nearest = {name: found[0] for name, found in find_nearest(corpus).items()}
    model = str(demo_model())
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")

    @cache
    def tokens_of(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    needed = sum(
        len(tokens_of(one.text)) + len(tokens_of(nearest[one.id].text))
        for one in {one.id: one for each in questions for one in each.documents}.values()
    )

    def describe(question: Question) -> tuple[list[int], list[tuple[int, str | None]]]:
        tokens = list(tokens_of(SYSTEM + USER))
        segments: list[tuple[int, str | None]] = [(len(tokens), None)]
        for place, one in enumerate(question.documents):
            if place:
                tokens += tokens_of(SEPARATOR)
                segments.append((len(tokens), None))
            tokens += tokens_of(one.text)
            segments.append((len(tokens), one.id))
        return [*tokens, *tokens_of(ASK.format(question=question.text))], segments

    def run(part: float, packs: bool) -> list[str]:
        from without_model import ModellessEngine

        from ragcache_engine.backends.vllm.tiers.scheduler import TierScheduler

        engine: Any = ModellessEngine(
            model,
            scheduler=TierScheduler,
            device_blocks=DEVICE_TOKENS // BLOCK_TOKENS,
            host_blocks=ceil(part * needed / BLOCK_TOKENS),
            recompute_ratio=RATIO,
            packs_donors=packs,
            check=False,
        )
        found: list[bool] = []
        before = 0
        for number, question in enumerate(questions):
            if number == len(questions) // 2:
                before, found = engine.computed_tokens, []
            behind = {
                one.id: Context(nearest[one.id].id, tuple(tokens_of(nearest[one.id].text)))
                for one in question.documents
            }
            engine.ask(str(number), *describe(question), contexts=behind)
            told = engine.run()[str(number)]
            found += [one["tier"] is not None for one in _borrowed(told)]
        engine.close()
        computed = (engine.computed_tokens - before) / (len(questions) - len(questions) // 2)
        kind = "int8" if packs else "the cache's type"
        return [f"{part:.0%}", kind, f"{sum(found) / len(found):.2f}", f"{computed:,.0f}"]

    rows = [run(part, packs) for part in PARTS for packs in (False, True)]
    print(f"{asked.set}, {len(questions)} questions, host tier as a part of {needed:,} tokens\n")
    print("\n".join(table(HEADS, rows)))


def _borrowed(told: dict[str, Any]) -> Sequence[dict[str, Any]]:
    reuse = told.get("reuse") or {"documents": []}
    documents: Sequence[dict[str, Any]] = reuse["documents"][1:]
    return documents


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
