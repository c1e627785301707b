"""Are RAGCache's answers those of vLLM, and how like are those from borrowed documents?"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.asking import TIERS, Engine, OurEngine, Prompt, Reply, StockEngine
from gpu.model import token_bytes
from gpu.run import Run
from ragcache_cli.models import demo_model
from ragcache_engine.anywhere.rouge import rouge_l

CONTEXT = 768
"""The longest prompt of three passages with its answer, in tokens: 538 and 12, in whole blocks."""


def questions(run: Run, documents: int) -> list[Prompt]:
    """Return questions about passages of Python's documentation; some passages come again and again."""
    from pydoc_data.topics import topics

    from ragcache_cli.prompts import CHATML
    from ragcache_cli.questions import QUESTIONS

    passages = {name: " ".join(text.split()[:90]) for name, text in sorted(topics.items())}
    names = list(passages)
    dice, prompts = random.Random(3), []
    for number in range(run.sizes.questions):
        chosen: dict[str, str] = {}
        while len(chosen) < documents:
            name = dice.choices(names, [1 / (rank + 1) for rank in range(len(names))])[0]
            chosen[name] = passages[name]
        text = CHATML.filled(list(chosen.values()), QUESTIONS[number % len(QUESTIONS)])
        prompts.append(Prompt(text, chosen))
    return prompts


async def ask_all(engine: Engine, run: Run, prompts: Sequence[Prompt], **how: Any) -> list[Reply]:
    """Ask one prompt after the other: company changes how bfloat16 is rounded."""
    return [await engine.ask(prompt, run.sizes.answer, **how) for prompt in prompts]


def emit_answers(run: Run, system: str, dtype: str, replies: Sequence[Reply]) -> None:
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    shares = {
        tier: round(sum(reply.cached.get(tier, 0) for reply in replies) / prompt_tokens, 3)
        for tier in TIERS
    }
    run.emit(
        "answers",
        system=system,
        dtype=dtype,
        **shares,
        tokens=[reply.token_ids for reply in replies],
        margins=[reply.margins for reply in replies if reply.margins],
    )


async def answers(run: Run, detail: str) -> None:
    """Answer the same questions by one system, for instance "RAGCache float32"."""
    system, dtype = detail.rsplit(" ", 1)
    numbers = "bfloat16" if dtype == "invariant" else dtype
    model, prompts = str(demo_model()), questions(run, 3)
    each = token_bytes(model, numbers)
    if system != "RAGCache":
        stock = StockEngine(
            model=model,
            kv_cache_memory_bytes=(len(prompts) + 1) * CONTEXT * each,
            enable_prefix_caching=system != "vLLM",
            **run.vllm_args(numbers, max_model_len=CONTEXT),
        )
        if system == "vLLM":
            emit_answers(run, system, dtype, await ask_all(stock, run, prompts, margins=True))
        else:  # twice, as RAGCache: in the second pass only each prompt's last tokens are computed
            for name in ("first", "second"):
                emit_answers(run, f"{system}, {name}", dtype, await ask_all(stock, run, prompts))
        stock.close()
        return
    with tempfile.TemporaryDirectory() as folder:
        for life, passes in ((1, ("first", "second")), (2, ("restarted",))):
            ours = OurEngine(
                model=model,
                device_cache=(CONTEXT + 192)
                * each,  # less than two prompts, so that each tier evicts
                host_cache=2 * CONTEXT * each,
                disk_cache=200_000 * each,
                disk_cache_dir=Path(folder),
                vllm_args=run.vllm_args(numbers, max_model_len=CONTEXT),
            )
            some = prompts if life == 1 else prompts[: max(2, len(prompts) // 3)]
            for name in passes:
                replies = await ask_all(ours, run, some)
                emit_answers(run, f"RAGCache, {name}", dtype, replies)
            ours.close()


async def likeness(run: Run, detail: str) -> None:
    """Answer from borrowed documents at ratio 1, which must be exact, at 0.15 and at 0."""
    model, dtype = str(demo_model()), run.sizes.dtypes[0]
    each = token_bytes(model, dtype)
    ours = OurEngine(
        model=model,
        device_cache=24_000 * each,
        host_cache=4_096 * each,
        reuse="anywhere",
        recompute_ratio=0.15,
        donors="alone",
        missing_donors="compute",
        recheck_share=0.0,
        vllm_args=run.vllm_args(dtype, max_model_len=4096),
    )
    prompts = questions(run, 4)[: max(4, run.sizes.questions // 3)]
    exact = await ask_all(ours, run, prompts, exact=True)
    for ratio in (1.0, 0.15, 0.0):
        replies = await ask_all(ours, run, prompts, recompute_ratio=ratio)
        pairs = list(zip(replies, exact, strict=True))
        run.emit(
            "likeness",
            ratio=ratio,
            n=len(pairs),
            equal=sum(one.token_ids == other.token_ids for one, other in pairs),
            rouge_l=round(
                statistics.fmean(rouge_l(one.text, other.text) for one, other in pairs), 3
            ),
            borrowed=sum(reply.borrowed for reply in replies),
            recomputed=sum(reply.recomputed for reply in replies),
        )
    ours.close()
