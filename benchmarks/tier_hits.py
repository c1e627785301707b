"""Measure which share of the prompt tokens each system finds cached, over thousands of questions.

    python benchmarks/tier_hits.py --out benchmarks/results/tiers        # ten minutes

A real model can be asked only some hundred questions, which are too few for policies that count how often
a document is asked for. In this script questions with their real tokens go through vLLM's real scheduler,
block pool and offload around a model that computes nothing (without_model.py), one at a time. It compares
vLLM's own offload with LRU and with ARC, and RAGCache, with the same number of blocks in device and host.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import track
from tiers import PreparedQuestion, describe_skew, draw_trace

SYSTEMS = ("vLLM LRU", "vLLM ARC", "RAGCache")
DEVICE_BLOCKS = 160
RATIOS = (0.9, 1.8, 3.7)
"""How many times as large as the host tier all tensors of the trace are."""


class Tokens:
    """Turns prompts into tokens, each with the segments that RAGCache gets."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model)

    def read(self, asked: PreparedQuestion) -> tuple[list[int], list[tuple[int, str | None]]]:
        read = self._tokenizer(asked.prompt, return_offsets_mapping=True)
        starts = [start for start, _ in read["offset_mapping"]]
        segments: list[tuple[int, str | None]] = []
        at = 0
        for document in asked.documents:
            begin = asked.prompt.index(document.text, at)
            at = begin + len(document.text)
            if begin > 0 and not segments:
                segments.append((sum(start < begin for start in starts), None))
            segments.append((sum(start < at for start in starts), document.id))
        return read["input_ids"], segments


def play(
    model: str,
    system: str,
    host_blocks: int,
    prompts: Sequence[tuple[list[int], list[tuple[int, str | None]]]],
    policy: str,
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


def count_live_blocks(prompts: Sequence[tuple[list[int], Any]], block_tokens: int = 16) -> int:
    """Count the blocks that hold all prompts, with each prefix once."""
    return len(
        {
            hash(tuple(tokens[:end]))
            for tokens, _ in prompts
            for end in range(block_tokens, len(tokens) + 1, block_tokens)
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
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
    tokens = Tokens(model)
    prompts = [tokens.read(one) for one in track(asked, "reading prompts", transient=True)]
    live = count_live_blocks(prompts)
    result: dict[str, Any] = {"trace": describe_skew(asked), "live_blocks": live, "rows": []}
    print("\n| live set to host | system | cached | first quarter | second | third | last |")
    print("|---|---|---|---|---|---|---|")
    for ratio in arguments.ratios:
        for system in SYSTEMS:
            stream = play(model, system, int(live / ratio), prompts, arguments.policy)
            rows = list(track(stream, f"{ratio} {system}", len(prompts), transient=True))
            ratios = hit_ratios(rows)
            result["rows"].append({"ratio": ratio, "system": system, "hit_ratios": ratios})
            print(f"| {ratio} | {system} | " + " | ".join(f"{hit:.1%}" for hit in ratios) + " |")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "tier-hits.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
