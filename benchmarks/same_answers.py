"""Count the answers of RAGCache that differ from those of stock vLLM.

Runs the same prompts through stock vLLM without a cache, stock vLLM by default (prefix caching on)
and RAGCache, one after another, each in a process of its own, and counts the answers that differ.

    python benchmarks/same_answers.py --dtype float32 --at-once 8
    python benchmarks/same_answers.py --dtype bfloat16
    python benchmarks/same_answers.py --small-tiers --questions 200

With --small-tiers, RAGCache has device, host and disk tiers so small that each of them evicts. The
questions come in a random order, one at a time, eight at a time, and eight at a time while as many
others are aborted at random moments.

In float32 no answer may differ. In bfloat16 vLLM differs from itself: it adds numbers in another order
when it prefills a prompt in other pieces or together with other prompts. So in bfloat16 RAGCache must
not differ more often than vLLM does. With one question at a time, only the cache can make a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from question_files import read_asked

from ragcache_cli.prompts import CHATML, PromptForm
from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions

SHARES = {"squad": 0.7, "multihoprag": 0.1, "nq_open": 0.1, "musique": 0.1}
TOP_K = 3
MAX_TOKENS = 24
CONTEXT_TOKENS = 4096
CACHE_BYTES = 800 << 20
FORM = PromptForm(
    "<|im_start|>system\nYou answer questions from the given passages.<|im_end|>\n<|im_start|>user\n",
    CHATML.between,
    CHATML.after,
)
SMALL = {"context_tokens": 2048, "device": 100 << 20, "host": 64 << 20, "disk": 192 << 20}
"""Bytes of each tier: the device holds little more than one prompt, the disk about fifteen."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A finished prompt, and the texts of its documents by id."""

    text: str
    documents: dict[str, str]


def data_prompts(count: int) -> list[Prompt]:
    """Take `count` real questions with the documents that search found for them.

    Most come from squad, about its most wanted paragraphs, so that documents recur.
    """
    prompts: list[Prompt] = []
    for name, share in SHARES.items():
        found = read_asked(name, TOP_K)
        wanted = Counter(one.documents[0]["doc_id"] for one in found)
        found.sort(key=lambda one: -wanted[one.documents[0]["doc_id"]])
        for one in found[: round(count * share)]:
            documents = one.texts()
            text = FORM.filled(list(documents.values()), one.question["query"])
            prompts.append(Prompt(text, documents))
    return prompts


def tokens_by(llm: Any, prompts: Sequence[str], at_once: int) -> list[list[int]]:
    """Answer each prompt with this LLM object of vLLM. Returns the token ids."""
    from vllm import SamplingParams

    options = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    tokens: list[list[int]] = []
    for start in range(0, len(prompts), at_once):
        outputs = llm.generate(list(prompts[start : start + at_once]), options, use_tqdm=False)
        tokens += [list(output.outputs[0].token_ids) for output in outputs]
    return tokens


def ragcache_tokens(
    engine: RAGCacheEngine, prompts: Sequence[Prompt], at_once: int, *, aborts: bool = False
) -> list[list[int]]:
    """Answer each prompt with RAGCache, `at_once` of them at a time. Returns the token ids.

    aborts: before each question, ask another one and cancel it within a second.
    """
    options = SamplingOptions(max_tokens=MAX_TOKENS)
    dice = random.Random(7)

    async def ask_all() -> list[list[int]]:
        turnstile = asyncio.Semaphore(at_once)

        async def ask(prompt: Prompt) -> list[int]:
            documents = [Document(name, text) for name, text in prompt.documents.items()]
            async with turnstile:
                if aborts:
                    await leave(engine, dice.choice(prompts), dice.uniform(0.0, 1.0))
                answer = await engine.agenerate(prompt.text, documents, options)
            assert len(set(answer.usage.document_ids)) == len(set(prompt.documents.values()))
            return list(answer.token_ids)

        return await asyncio.gather(*map(ask, prompts))

    return asyncio.run(ask_all())


async def leave(engine: RAGCacheEngine, prompt: Prompt, after_s: float) -> None:
    """Ask, and leave the answer's stream after so many seconds."""
    documents = [Document(name, text) for name, text in prompt.documents.items()]
    pieces = engine.astream(prompt.text, documents, SamplingOptions(max_tokens=MAX_TOKENS))
    async with aclosing(pieces):
        try:
            async with asyncio.timeout(after_s):
                async for _ in pieces:
                    pass
        except TimeoutError:
            pass


Answers = Callable[[str, str, Sequence[Prompt], int], list[list[int]]]
"""(model, dtype, prompts, at_once) -> the tokens of each answer."""


def _ragcache(model: str, dtype: str, prompts: Sequence[Prompt], at_once: int) -> list[list[int]]:
    config = EngineConfig(
        model=model,
        backend="vllm",
        device_cache=CACHE_BYTES,
        vllm_args={"dtype": dtype, "max_model_len": CONTEXT_TOKENS},
    )
    with RAGCacheEngine(config) as engine:
        tokens = ragcache_tokens(engine, prompts, at_once)
        print(f"  prompt tokens from the cache: {engine.stats().hit_ratio():.0%}", file=sys.stderr)
    return tokens


def _small_tiers(aborts: bool) -> Answers:
    def tokens(model: str, dtype: str, prompts: Sequence[Prompt], at_once: int) -> list[list[int]]:
        with tempfile.TemporaryDirectory() as folder:
            config = EngineConfig(
                model=model,
                backend="vllm",
                device_cache=SMALL["device"],
                host_cache=SMALL["host"],
                disk_cache=SMALL["disk"],
                disk_cache_dir=Path(folder),
                vllm_args={"dtype": dtype, "max_model_len": SMALL["context_tokens"]},
            )
            with RAGCacheEngine(config) as engine:
                answers = ragcache_tokens(engine, prompts, at_once, aborts=aborts)
                stats = engine.stats()
        evicted = ", ".join(f"{blocks} {tier}" for tier, blocks in stats.tiers.evicted.items())
        print(
            f"  prompt tokens from device, host, disk, computed: {stats.cached.device} "
            f"{stats.cached.host} {stats.cached.disk} {stats.computed_tokens}; blocks evicted: "
            f"{evicted}; cancelled {stats.cancelled}",
            file=sys.stderr,
        )
        return answers

    return tokens


def _stock(prefix_caching: bool, eager: bool = True) -> Answers:
    def tokens(model: str, dtype: str, prompts: Sequence[Prompt], at_once: int) -> list[list[int]]:
        """Answer with vLLM's own LLM class, with its defaults except for sizes and dtype."""
        from vllm import LLM

        llm = LLM(
            model=model,
            dtype=dtype,
            max_model_len=CONTEXT_TOKENS,
            kv_cache_memory_bytes=CACHE_BYTES,
            enable_prefix_caching=prefix_caching,
            enforce_eager=eager,
        )
        return tokens_by(llm, [prompt.text for prompt in prompts], at_once)

    return tokens


STOCK, COMPILED = "vLLM, no cache", "vLLM, no cache, compiled"
SYSTEMS: dict[str, Answers] = {
    STOCK: _stock(prefix_caching=False),
    COMPILED: _stock(prefix_caching=False, eager=False),
    "vLLM": _stock(prefix_caching=True),
    "RAGCache": _ragcache,
    "small tiers": _small_tiers(aborts=False),
    "with aborts": _small_tiers(aborts=True),
}
USUAL = (STOCK, "vLLM", "RAGCache")
TIERS = ((STOCK, 8), ("small tiers", 1), ("small tiers", 8), ("with aborts", 8))
"""Systems, and how many questions to ask each of them at a time."""


def tokens_of(
    system: str, model: str, dtype: str, prompts: Sequence[Prompt], at_once: int
) -> list[list[int]]:
    """Let one of SYSTEMS answer in a process of its own, and wait for the end of the process."""
    order = {
        "system": system,
        "model": model,
        "dtype": dtype,
        "at_once": at_once,
        "prompts": [asdict(prompt) for prompt in prompts],
    }
    with tempfile.TemporaryDirectory() as folder:
        # Not over standard output: vLLM writes there, too.
        out = Path(folder, "tokens")
        command = [sys.executable, __file__, "--worker", str(out)]
        subprocess.run(command, input=json.dumps(order), text=True, check=True)
        tokens: list[list[int]] = json.loads(out.read_text())
    return tokens


def _work(out: Path) -> None:
    order = json.load(sys.stdin)
    prompts = [Prompt(**prompt) for prompt in order["prompts"]]
    answers = SYSTEMS[order["system"]]
    out.write_text(json.dumps(answers(order["model"], order["dtype"], prompts, order["at_once"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=1, help="questions in the engine at a time")
    parser.add_argument("--model", help="a folder or hub id (default: the demo's model)")
    parser.add_argument(
        "--small-tiers", action="store_true", help="tiers that all evict, against no cache at all"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return _work(arguments.worker)
    from ragcache_cli.models import demo_model

    model = arguments.model or str(demo_model())
    prompts = data_prompts(arguments.questions)
    answers: dict[str, list[list[int]]] = {}
    runs = TIERS if arguments.small_tiers else [(name, arguments.at_once) for name in USUAL]
    if arguments.small_tiers:
        random.Random(11).shuffle(prompts)
    for system, at_once in runs:
        name = f"{system}, {at_once} at once" if arguments.small_tiers else system
        print(f"{name} in {arguments.dtype} ...", file=sys.stderr)
        answers[name] = tokens_of(system, model, arguments.dtype, prompts, at_once)
    names = list(answers)
    print(f"\nAnswers that differ, of {len(prompts)} ({arguments.dtype}, greedy)")
    for number, left in enumerate(names):
        for right in names[number + 1 :]:
            pairs = zip(answers[left], answers[right], strict=True)
            print(f"  {left:>26} | {right:<26} {sum(a != b for a, b in pairs):>4}")
    return None


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    main()
