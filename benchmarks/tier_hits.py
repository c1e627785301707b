"""Measure which share of the prompt tokens each system finds cached, over thousands of questions.

    python benchmarks/tier_hits.py --out benchmarks/results/tiers        # ten minutes

A real model can be asked only some hundred questions, which are too few for policies that count how often
a document is asked for. In this script questions with their real tokens go through vLLM's real scheduler,
block pool and offload around a model that computes nothing (without_model.py), one at a time. It compares
vLLM's own offload with LRU and with ARC, and RAGCache, with the same number of blocks in device and host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from comparing.questions import live_tokens
from programs import command_line, keep
from rich.progress import track
from same_answers import FORM
from tables import table
from tiers import PreparedQuestion, describe_skew, draw_trace

SYSTEMS = ("vLLM LRU", "vLLM ARC", "RAGCache")
DEVICE_BLOCKS, BLOCK_TOKENS = 160, 16
RATIOS = (0.9, 1.8, 3.7)
"""How many times as large as the host tier all tensors of the trace are."""
Prompt = tuple[Sequence[int], Sequence[tuple[int, str | None]]]
"""A prompt's tokens, and the segments that RAGCache gets with them."""


def read_prompts(model: str, asked: Sequence[PreparedQuestion]) -> list[Prompt]:
    from transformers import AutoTokenizer
    from virtual.questions import AskedOf, Passage, Questions

    found = [
        AskedOf(one.question, tuple(Passage(each.id, each.text) for each in one.documents), "")
        for one in asked
    ]
    questions = Questions(found, FORM, AutoTokenizer.from_pretrained(model))
    read = map(questions.request, track(range(len(found)), "reading prompts", transient=True))
    return [(one.tokens, one.segments) for one in read]


def play(
    model: str, system: str, host_blocks: int, prompts: Sequence[Prompt], policy: str
) -> Iterator[tuple[int, int]]:
    """Ask a system every prompt. Yields for each its tokens, and how many of them were computed."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from without_model import ModellessEngine

    from ragcache_engine.backends.vllm.tiers.scheduler import TierScheduler

    ours = system == "RAGCache"
    engine = ModellessEngine(
        model,
        scheduler=TierScheduler if ours else AsyncScheduler,
        device_blocks=DEVICE_BLOCKS,
        host_blocks=host_blocks,
        policy=policy,
        check=False,
        stock_policy=system.split()[-1].lower(),
    )
    try:
        for number, (tokens, segments) in enumerate(prompts):
            before = engine.computed_tokens
            engine.ask(str(number), tokens, segments, answer_tokens=2)
            engine.run()
            yield len(tokens), engine.computed_tokens - before
    finally:
        engine.close()


def hit_ratios(rows: Sequence[tuple[int, int]], parts: int = 4) -> list[float]:
    """Return the hit ratio of all prompts, then of each of `parts` equal parts of the stream."""
    length = len(rows) // parts
    spans = [rows, *(rows[at * length : (at + 1) * length] for at in range(parts))]
    return [
        1 - sum(computed for _, computed in span) / sum(tokens for tokens, _ in span)
        for span in spans
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS)
    parser.add_argument("--skew", type=float, default=1.0, help="Zipf exponent; 0: as they came")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="halflife", help="RAGCache's")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from ragcache_cli.models import demo_model

    model = str(demo_model())
    asked = draw_trace(arguments.questions, arguments.skew or None, arguments.seed)
    print(f"Trace: {describe_skew(asked)} (Zipf {arguments.skew})")
    prompts = read_prompts(model, asked)
    live = live_tokens([tokens for tokens, _ in prompts], BLOCK_TOKENS) // BLOCK_TOKENS
    result: dict[str, Any] = {"trace": describe_skew(asked), "live_blocks": live, "rows": []}
    for ratio in arguments.ratios:
        for system in SYSTEMS:
            stream = play(model, system, int(live / ratio), prompts, arguments.policy)
            rows = list(track(stream, f"{ratio} {system}", len(prompts), transient=True))
            ratios = hit_ratios(rows)
            result["rows"].append({"ratio": ratio, "system": system, "hit_ratios": ratios})
    heads = ["live set to host", "system", "cached", *("first quarter", "second", "third", "last")]
    rows = [
        [str(one["ratio"]), one["system"], *(f"{hit:.1%}" for hit in one["hit_ratios"])]
        for one in result["rows"]
    ]
    lines = list(table(heads, rows))
    print("", *lines, sep="\n")
    keep(arguments.out, "tier-hits", lines, result)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
