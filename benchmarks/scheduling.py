"""Measure how much time RAGCache adds to vLLM's own scheduling, request by request.

    python benchmarks/scheduling.py --nodes 10000

vLLM's stock scheduler, the same with vLLM's own host offload, and RAGCache's scheduler get the same
requests in turn, fifty in a row, around a model that computes nothing (without_model.py). An engine has
its process to itself: if they took turns after every request, each would find none of its data in the
processor's caches. Timing begins once the knowledge tree has --nodes nodes. It covers everything that
runs in the scheduler's process for one request, from its arrival to its end, without the copying of
blocks.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from programs import command_line, keep
from tables import table

SYSTEM_TOKENS = 40
DOCUMENT_TOKENS = 160
TOP_K = 3
QUESTION_TOKENS = 24
ANSWER_TOKENS = 8
IN_A_ROW = 50


class Requests:
    """Makes prompts: one system text, documents drawn with Zipf weights, and a new question each."""

    def __init__(self, documents: int, seed: int) -> None:
        self._dice = random.Random(seed)
        self._documents = documents
        self._weights = [1 / (rank + 1) for rank in range(documents)]

    def next(self) -> tuple[list[int], list[tuple[int, str | None]]]:
        """Make a prompt: its tokens and its segments."""
        tokens = [3] * SYSTEM_TOKENS
        segments: list[tuple[int, str | None]] = [(SYSTEM_TOKENS, None)]
        for number in self._dice.choices(range(self._documents), self._weights, k=TOP_K):
            tokens += [1000 + (number * 7919 + at) % 40_000 for at in range(DOCUMENT_TOKENS)]
            segments.append((len(tokens), f"d{number}"))
        question = [self._dice.randrange(40_000) for _ in range(QUESTION_TOKENS)]
        return tokens + question, segments


def time_scheduling(engine: Any, name: str, request: Any) -> float:
    """Let one request run alone. Returns the seconds that the scheduler took for it."""
    tokens, segments = request
    before = engine.scheduling_s
    engine.ask(name, tokens, segments, answer_tokens=ANSWER_TOKENS)
    engine.run()
    return float(engine.scheduling_s - before)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--policy", default="halflife")
    parser.add_argument("--out", type=Path, help="a folder for scheduling.json")
    arguments = parser.parse_args()

    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from without_model import ModellessEngine

    from ragcache_cli.models import demo_model
    from ragcache_engine.backends.vllm.tiers.scheduler import TierScheduler

    model = str(demo_model())
    sizes = {"device_blocks": 2_000, "check": False}
    stock = ModellessEngine(model, scheduler=AsyncScheduler, **sizes)
    # The host has room for the blocks of all nodes, so that matching and storing have work.
    host_blocks = arguments.nodes * DOCUMENT_TOKENS // 16
    offload = ModellessEngine(model, scheduler=AsyncScheduler, host_blocks=host_blocks, **sizes)
    ours = ModellessEngine(
        model,
        scheduler=TierScheduler,
        host_blocks=host_blocks,
        policy=arguments.policy,
        **sizes,
    )
    requests = Requests(arguments.nodes, seed=1)
    number = 0
    while len(ours.cache.tree) < arguments.nodes:
        tokens, segments = requests.next()
        for engine in (stock, offload, ours):
            engine.ask(f"warm{number}", tokens, segments, answer_tokens=1)
            engine.run()
        number += 1
        if number % 500 == 0:
            print(f"  {len(ours.cache.tree)} nodes after {number} requests", file=sys.stderr)
    systems = {"vLLM": stock, "vLLM offload": offload, "RAGCache": ours}
    took: dict[str, list[float]] = {name: [] for name in systems}
    asked = [(f"{at}", requests.next()) for at in range(arguments.requests)]
    for turn, start in enumerate(range(0, len(asked), IN_A_ROW)):
        names = list(systems)
        for name in names[turn % 3 :] + names[: turn % 3]:
            for number_of, request in asked[start : start + IN_A_ROW]:
                took[name].append(time_scheduling(systems[name], number_of, request))
    rows = dict(took)
    for name in ("vLLM", "vLLM offload"):
        pairs = zip(took[name], took["RAGCache"], strict=True)
        rows[f"added to {name}"] = [mine - theirs for theirs, mine in pairs]
    result: dict[str, Any] = {"nodes": len(ours.cache.tree), "policy": arguments.policy}
    for name, seconds in rows.items():
        p25, median, p75 = statistics.quantiles(seconds, n=4)
        p99 = statistics.quantiles(seconds, n=100)[-1]
        result[name] = {"median": median, "p25": p25, "p75": p75, "p99": p99}
    head = [f"scheduling a request, {result['nodes']} nodes, ms", *result["vLLM"]]
    cells = ([name, *(f"{1e3 * s:.3f}" for s in result[name].values())] for name in rows)
    lines = list(table(head, cells))
    print("", *lines, sep="\n")
    keep(arguments.out, "scheduling", lines, result)
    for engine in systems.values():
        engine.close()


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
