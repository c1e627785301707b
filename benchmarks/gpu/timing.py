"""Seconds to the first token of one request at a time, by where its prompt's tokens come from."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from gpu.asking import (
    QUESTION_WORDS,
    SYSTEM_WORDS,
    OurEngine,
    Prompt,
    Reply,
    StockEngine,
    prompt_of,
    words,
)
from gpu.model import load, our_engine, token_bytes
from gpu.run import Run
from ragcache_engine import EngineError


async def ttft(run: Run, system: str) -> None:
    """Note each TTFT by where most of the prompt's tokens came from. system: "vllm" or "ragcache"."""
    await {"vllm": ttft_of_vllm, "ragcache": ttft_of_ragcache}[system](run)


async def ttft_of_vllm(run: Run) -> None:
    """Ask each document twice: it is computed, then vLLM's prefix cache has it."""
    sizes, given = run.sizes, load(run)
    stock = StockEngine(
        kv_cache_memory_bytes=2 * sizes.context * token_bytes(given["model"], sizes.dtype),
        enable_prefix_caching=True,
        **run.vllm_args(sizes.dtype, max_model_len=sizes.context, **given),
    )
    for length in sizes.lengths:
        for number in range(-1, sizes.repeats):  # the first compiles
            document = {"d": words(f"{length} {number}", length)}
            for place in ("vLLM, computed", "vLLM, device"):
                reply = await stock.ask(prompt_of(document, f"{place} {number}"), 1)
                if number >= 0:
                    emit_ttft(run, length, place, reply)
    stock.close()


def emit_ttft(run: Run, length: int, place: str, reply: Reply, **more: int) -> None:
    run.emit(
        "ttft",
        length=length,
        place=place,
        ttft_s=round(reply.ttft_s, 5),
        prompt_tokens=reply.prompt_tokens,
        **more,
    )


async def ttft_of_ragcache(run: Run) -> None:
    """Ask the same documents again and again, until each tier has answered for them."""
    sizes = run.sizes
    given = load(run)
    has_files = "load_format" not in given
    with tempfile.TemporaryDirectory(dir=run.out) as folder:
        each = token_bytes(given["model"], sizes.dtype)
        disk = (
            {"disk_cache": sizes.disk * each, "disk_cache_dir": Path(folder)} if has_files else {}
        )
        ours = our_engine(run, device=sizes.device, host=sizes.host, **disk)
        asked = 0

        async def ask(length: int, number: int) -> None:
            nonlocal asked
            asked += 1
            text = words(f"{length} {number}", length)
            prompt = prompt_of({f"{length}/{number}": text}, f"ask {asked}")
            reply = await ours.ask(prompt, 1)
            places = {"computed": reply.prompt_tokens - reply.cached_tokens, **reply.cached}
            place = max(places, key=places.__getitem__)
            # System text and question are of another place than the document, some blocks may be too.
            least = 0.7 * reply.prompt_tokens * share_of_document(length)
            if number >= 0 and places[place] > least:
                emit_ttft(run, length, place, reply, bytes=places[place] * each)

        for length in sizes.lengths:  # compiles
            await ask(length, -1)
        await clear(ours)
        documents = [(length, n) for length in sizes.lengths for n in range(sizes.repeats)]
        for document in documents:
            await ask(*document)  # computed
            await ask(*document)  # from the device
        fillers = longest_prompts(given["model"], sizes.context)
        for _ in range(2):
            for length in sizes.lengths:
                await ask(length, 0)
                await ours.ask(next(fillers), 1)  # nothing else stays on the device
                await ask(length, 0)  # from the host
        for _ in range(2 if has_files else 0):
            for document in documents:
                await clear(ours)
                await ask(*document)  # from the disk, where it was written meanwhile
        run.emit("counters", **dataclasses.asdict(ours.engine.stats()))
        ours.close()


def share_of_document(length: int) -> float:
    """Return the share that a document of so many words has of a prompt's words."""
    return length / (length + SYSTEM_WORDS + QUESTION_WORDS)


def longest_prompts(model: str, context: int) -> Iterator[Prompt]:
    """Yield texts of nearly as many tokens as the model takes, each another one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    for number in count():
        tokens = tokenizer(words(f"filler {number}", context)).input_ids
        yield Prompt(str(tokenizer.decode(tokens[: context - 16])), {})


async def clear(ours: OurEngine) -> None:
    """Empty device and host; what is on disk stays. Try again while copies run."""
    for _ in range(50):
        with suppress(EngineError):
            await ours.engine.aclear_cache()
            return
        await asyncio.sleep(0.1)


async def borrowed(run: Run, detail: str) -> None:
    """Ask for documents in ever new orders: computed, and borrowed at ratio 0.15 and 0."""
    sizes = run.sizes
    most = max(2, sizes.lengths[-1] // sizes.document)
    texts = {f"b{number}": words(f"b{number}", sizes.document) for number in range(most + 2)}
    ours = our_engine(
        run,
        device=5 * sizes.context,
        host=sizes.context,
        reuse="anywhere",
        donors="alone",
        missing_donors="compute",
        recompute_ratio=0.0,
        recheck_share=0.0,
    )
    names, dice, asked = sorted(texts), random.Random(9), 0

    async def ask(chosen: Sequence[str], **how: Any) -> Reply:
        nonlocal asked
        asked += 1
        return await ours.ask(prompt_of({n: texts[n] for n in chosen}, f"ask {asked}"), 1, **how)

    for at in range(0, len(names), 2):  # every document but the first of a prompt becomes a donor
        await ask(names[at : at + 2])
        await ask(names[at : at + 2][::-1])
    ways: dict[str, dict[str, Any]] = {
        "computed": {"exact": True},
        "borrowed, 0.15": {"recompute_ratio": 0.15},
        "borrowed, 0": {"recompute_ratio": 0.0},
    }
    for length in sizes.lengths:
        taken = max(2, length // sizes.document)
        for turn in range(1 + sizes.repeats):  # the first one may compile
            for way, how in ways.items():
                reply = await ask(dice.sample(names, taken), **how)
                if turn:
                    emit_ttft(
                        run,
                        length,
                        way,
                        reply,
                        borrowed=reply.borrowed,
                        recomputed=reply.recomputed,
                    )
    ours.close()
