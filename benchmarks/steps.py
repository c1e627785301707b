"""Measure the model's steps where nothing is cached: RAGCacheEngine against vLLM's own LLM on a CPU.

    python benchmarks/steps.py --out benchmarks/results/steps    # `make bench-steps`: five minutes

Caches play no part here: every prompt is new. What differs is where the model runs, see "On a CPU" in
docs/vllm.md: vLLM runs it in a worker process and keeps one core free; with
VLLM_CPU_NUM_OF_RESERVED_CPU=0 it keeps none free; RAGCache runs it in vLLM's core process, on all cores.
Each side is a fresh process in each round, in an order that changes. Reported are the medians over all
rounds with quartiles, the quotients of the rounds, and whether all sides said the same tokens.
"""

from __future__ import annotations

# Nothing heavy here: vLLM's processes import this file again.
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
SIDES = ("vLLM", "vLLM, no core kept free", "RAGCache")
CACHE_BYTES, CONTEXT_TOKENS = 256 << 20, 2_048
PROMPT_TOKENS, SHORT_TOKENS, ANSWER_TOKENS = 800, 20, 33
PREFILLS, SHORTS, ANSWERS = 15, 30, 8
MEASURES = {
    "prefill": f"a prompt of {PROMPT_TOKENS} tokens, ms",
    "short": f"a prompt of {SHORT_TOKENS} tokens, ms",
    "decode": "a further token, ms",
}
RESULT = "result: "


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for steps.json and steps.md")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        print(f"\n{RESULT}{json.dumps(measure_here(asked.side, asked.model))}", flush=True)
        return
    from ragcache_cli.models import demo_model

    model, rounds = str(demo_model()), []
    for number in range(asked.rounds):
        order = SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]
        rounds.append({side: run_side(side, model) for side in order})
        print(f"round {number + 1} of {asked.rounds}", file=sys.stderr, flush=True)
    text = "\n".join(describe(rounds))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "steps.md").write_text(text + "\n", encoding="utf-8")
        (asked.out / "steps.json").write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    print(text)


def run_side(side: str, model: str) -> dict[str, Any]:
    """Measure a side in a fresh process. Raises SystemExit if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != RESERVED}
    if side == SIDES[1]:
        environment[RESERVED] = "0"
    command = [sys.executable, __file__, "--side", side, "--model", model]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = [line for line in ended.stdout.splitlines() if line.startswith(RESULT)]
    if ended.returncode or not found:
        raise SystemExit(f"{side} failed:\n{ended.stderr[-4_000:]}")
    measured: dict[str, Any] = json.loads(found[-1].removeprefix(RESULT))
    return measured


def measure_here(side: str, model: str) -> dict[str, Any]:
    """Start this side in this process, and time prompts that it has not seen."""
    generate, close = start_ours(model) if side == SIDES[2] else start_stock(model)
    numbers = iter(range(10_000))

    def time_one(words: int, tokens: int) -> float:
        text = f"{next(numbers)}" + " the" * (words - 1)
        began_s = time.perf_counter()
        generate(text, tokens)
        return time.perf_counter() - began_s

    for _ in range(3):
        time_one(PROMPT_TOKENS, 2)
    measured: dict[str, Any] = {
        "prefill": [time_one(PROMPT_TOKENS, 1) for _ in range(PREFILLS)],
        "short": [time_one(SHORT_TOKENS, 1) for _ in range(SHORTS)],
        "decode": [
            (time_one(SHORT_TOKENS, ANSWER_TOKENS) - time_one(SHORT_TOKENS, 1))
            / (ANSWER_TOKENS - 1)
            for _ in range(ANSWERS)
        ],
        "said": generate("Once upon a time there was", 24),
    }
    close()
    return measured


def start_stock(model: str) -> tuple[Callable[[str, int], list[int]], Callable[[], None]]:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="float32",
        kv_cache_memory_bytes=CACHE_BYTES,
        max_model_len=CONTEXT_TOKENS,
        enforce_eager=True,
        block_size=32,
    )

    def generate(text: str, tokens: int) -> list[int]:
        options = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        return list(llm.generate([text], options, use_tqdm=False)[0].outputs[0].token_ids)

    return generate, lambda: None


def start_ours(model: str) -> tuple[Callable[[str, int], list[int]], Callable[[], None]]:
    from ragcache_engine import EngineConfig, RAGCacheEngine, SamplingOptions

    arguments = {"max_model_len": CONTEXT_TOKENS, "dtype": "float32"}
    engine = RAGCacheEngine(
        EngineConfig(model=model, device_cache=CACHE_BYTES, vllm_args=arguments)
    )

    def generate(text: str, tokens: int) -> list[int]:
        options = SamplingOptions(max_tokens=tokens, ignore_eos=True)
        return list(engine.generate(text, options=options).token_ids)

    return generate, engine.close


def describe(rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Write a Markdown table of the medians, and what RAGCache gains in each round."""
    lines = ["| median (quartiles) | " + " | ".join(SIDES) + " |", "|---" * (len(SIDES) + 1) + "|"]
    for measure, name in MEASURES.items():
        cells = [spread([1e3 * s for one in rounds for s in one[side][measure]]) for side in SIDES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("")
    for side in SIDES[:2]:
        gains = {
            measure: [
                statistics.median(one[side][measure]) / statistics.median(one[SIDES[2]][measure])
                for one in rounds
            ]
            for measure in MEASURES
        }
        said = ", ".join(f"{measure} {spread(values)}" for measure, values in gains.items())
        lines.append(f"{side} / RAGCache, by rounds: {said}")
    same = all(one[side]["said"] == rounds[0][SIDES[0]]["said"] for one in rounds for side in SIDES)
    lines.append(f"All sides said the same tokens: {'yes' if same else 'NO'}.")
    return lines


def spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.2f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
