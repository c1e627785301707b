"""A stream of requests to RAGCache, to vLLM's prefix cache, or to vLLM's own host offload."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence

from gpu.asking import Engine, Prompt, Reply, StockEngine, prompt_of, words
from gpu.model import load, our_engine, token_bytes
from gpu.run import Run

WARM_BESIDE = 8
"""So many requests at a time before a stream is measured."""

SYSTEMS = ("ragcache", "lru", "prefix", "arc")
DOCUMENTS, SETS = 400, 300


def zipf_prompts(run: Run, count: int, seed: int) -> list[Prompt]:
    """Return prompts of three documents. Which ones are found together is drawn with Zipf weights."""
    dice = random.Random(4)
    lengths = [
        dice.randint(run.sizes.stream_words // 4, run.sizes.stream_words) for _ in range(DOCUMENTS)
    ]
    found = [dice.sample(range(DOCUMENTS), 3) for _ in range(SETS)]
    drawn = random.Random(seed).choices(found, [1 / (rank + 1) for rank in range(SETS)], k=count)
    return [
        prompt_of({f"s{n}": words(f"s{n}", lengths[n]) for n in names}, f"stream {seed} {at}")
        for at, names in enumerate(drawn)
    ]


def stream_engine(run: Run, system: str) -> Engine:
    sizes = run.sizes
    if system == "ragcache":
        return our_engine(run, device=sizes.stream_device, host=sizes.stream_host)
    given = load(run)
    each = token_bytes(given["model"], sizes.dtype)
    arguments = run.vllm_args(sizes.dtype, max_model_len=sizes.context, **given)
    if system in ("lru", "arc"):
        from comparing.stock_offload import stock_offload

        arguments |= stock_offload(system, sizes.stream_host * each, on_cpu=run.is_cpu)
    if run.is_cpu:
        arguments["block_size"] = 32  # as RAGCache's
    return StockEngine(
        kv_cache_memory_bytes=sizes.stream_device * each, enable_prefix_caching=True, **arguments
    )


async def stream(run: Run, system: str) -> None:
    """Send requests at given rates to one system, as they would come from users."""
    sizes = run.sizes
    engine = stream_engine(run, system)
    gate = asyncio.Semaphore(WARM_BESIDE)

    async def warm(prompt: Prompt) -> Reply:
        async with gate:
            return await engine.ask(prompt, 1)

    warmed = await asyncio.gather(*map(warm, zipf_prompts(run, sizes.stream_warm, 1)))
    prompt_tokens = statistics.fmean(reply.prompt_tokens for reply in warmed)
    for seed, load_share in enumerate(sizes.loads, start=2):
        rate = load_share / (prompt_tokens * run.settings["prefill_token_s"])
        due: list[float] = []
        dice, at = random.Random(seed), 0.0
        while (at := at + dice.expovariate(rate)) < sizes.stream_s or not due:
            due.append(at)
        replies, unfinished = await play(engine, zipf_prompts(run, len(due), seed), due)
        if not replies:
            raise RuntimeError(f"none of {len(due)} requests was answered")
        run.emit(
            "stream",
            system=system,
            load=load_share,
            rate=round(rate, 2),
            unfinished=unfinished,
            ttft_s=[round(reply.ttft_s, 4) for reply in replies],
            hit_share=round(
                sum(reply.cached_tokens for reply in replies)
                / sum(reply.prompt_tokens for reply in replies),
                3,
            ),
        )
    engine.close()


async def play(
    engine: Engine, prompts: Sequence[Prompt], due: Sequence[float]
) -> tuple[list[Reply], int]:
    """Ask each prompt at its time; return the answers, and how many were not there in time."""
    began = time.perf_counter()

    async def ask(prompt: Prompt, at: float) -> Reply:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        return await engine.ask(prompt, 16)

    tasks = [asyncio.create_task(ask(*pair)) for pair in zip(prompts, due, strict=True)]
    done, pending = await asyncio.wait(tasks, timeout=3 * due[-1] + 15)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [task.result() for task in done], len(pending)
