"""Device, host and disk under one tree on real vLLM: the same tokens, wherever the tensors came from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from ragcache_engine import (
    Answer,
    Document,
    EngineConfig,
    RAGCacheEngine,
    SamplingOptions,
    Usage,
    Warmed,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

OPTIONS = SamplingOptions(max_tokens=6)
DOCUMENTS = [
    Document(
        f"d{number}",
        f"Report {number}. "
        + " ".join(f"Item {number * 31 + line} weighs {line}." for line in range(20)),
    )
    for number in range(8)
]


@contextmanager
def small_engine(model: str, folder: Path) -> Iterator[RAGCacheEngine]:
    """A device tier for one prompt and a bit, a host for three, a disk for all."""
    config = EngineConfig(
        model=model,
        backend="vllm",
        device_cache="60MiB",
        host_cache="90MiB",
        disk_cache="400MiB",
        disk_cache_dir=folder,
        vllm_args={"dtype": "float32", "max_model_len": 1024},
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def prompts(count: int, seed: int = 3) -> list[tuple[str, list[Document]]]:
    dice = random.Random(seed)
    asked = []
    for number in range(count):
        documents = dice.sample(DOCUMENTS, 2)
        passages = "\n\n".join(document.text for document in documents)
        asked.append((f"Use the reports.\n\n{passages}\n\nQuestion {number}: which is", documents))
    return asked


def answers(
    engine: RAGCacheEngine,
    asked: Sequence[tuple[str, list[Document]]],
    *,
    at_once: int,
    aborts: bool = False,
) -> list[Answer]:
    dice = random.Random(5)

    async def give_up(prompt: str, documents: list[Document]) -> None:
        pieces = engine.astream(prompt, documents, OPTIONS)
        async with aclosing(pieces):
            try:
                async with asyncio.timeout(dice.uniform(0.0, 0.8)):
                    async for _ in pieces:
                        pass
            except TimeoutError:
                pass

    async def ask_all() -> list[Answer]:
        turnstile = asyncio.Semaphore(at_once)

        async def ask(prompt: str, documents: list[Document]) -> Answer:
            async with turnstile:
                if aborts:
                    await give_up(*dice.choice(asked))
                return await engine.agenerate(prompt, documents, OPTIONS)

        return await asyncio.gather(*(ask(*one) for one in asked))

    return asyncio.run(ask_all())


def whole_prompt_is_accounted_for(usage: Usage) -> bool:
    return 0 <= usage.cached.total < usage.prompt_tokens


def test_tiers_that_all_evict_give_the_tokens_of_an_engine_with_room_for_everything(
    vllm_engine: RAGCacheEngine, demo_model: str, tmp_path: Path
):
    asked = prompts(18)
    expected = [answer.token_ids for answer in answers(vllm_engine, asked, at_once=8)]
    with small_engine(demo_model, tmp_path) as engine:
        one_by_one = answers(engine, asked, at_once=1)
        assert [answer.token_ids for answer in one_by_one] == expected
        assert all(whole_prompt_is_accounted_for(answer.usage) for answer in one_by_one)
        with_aborts = answers(engine, asked, at_once=8, aborts=True)
        assert [answer.token_ids for answer in with_aborts] == expected
        stats = engine.stats()
        assert min(stats.tiers.evicted["device"], stats.tiers.evicted["host"]) > 0
        assert min(stats.cached.host, stats.cached.disk) > 0  # or not every tier was tried
    flip_a_byte(tmp_path)
    with small_engine(demo_model, tmp_path) as second_life:
        template, sets = "Use the reports.\n\n{context}\n\nQuestion", [[one] for one in DOCUMENTS]
        missing = second_life.warm(sets, template=template, only_missing=True)
        assert missing.computed_tokens < missing.prompt_tokens / 2, "most are on disk"
        finished = second_life.stats().finished
        held = second_life.warm(sets, template=template, only_missing=True)
        assert held == Warmed(len(sets), missing.prompt_tokens)
        assert second_life.stats().finished == finished
        again = answers(second_life, asked, at_once=1)
        assert [answer.token_ids for answer in again] == expected
        assert second_life.stats().cached.disk > 0
        assert second_life.stats().tiers.damaged >= 1
        second_life.forget([document.id for document in DOCUMENTS])
        assert not list(tmp_path.rglob("*.kv"))
        prompt, documents = asked[0]
        assert second_life.generate(prompt, documents, OPTIONS).usage.cached.total == 0


def flip_a_byte(folder: Path) -> None:
    """In a third of the files, so that some of these are asked for, and some others."""
    for path in sorted(folder.rglob("*.kv"))[::3]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def test_tenants_share_nothing(vllm_engine: RAGCacheEngine):
    (prompt, documents), *_ = prompts(1, seed=99)
    vllm_engine.generate(prompt, documents, OPTIONS, tenant="ours")
    theirs = vllm_engine.generate(prompt, documents, OPTIONS, tenant="theirs")
    ours = vllm_engine.generate(prompt, documents, OPTIONS, tenant="ours")
    assert theirs.usage.cached.total == 0
    assert ours.usage.cached.total > 0
    assert theirs.token_ids == ours.token_ids
