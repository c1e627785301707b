"""Prefills of warming: some at a time, none that is held already, all ended by an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ragcache_engine import (
    Document,
    EngineConfig,
    EngineDied,
    GenerationFailed,
    InvalidArgument,
    MemoryBackend,
    PromptTooLong,
    RAGCacheEngine,
    Warmed,
)
from ragcache_engine.backends.memory import Stall
from ragcache_engine.warming.prefill import WARM_AT_ONCE

TEMPLATE = "Use the reports.\n\n{context}\n\nQuestion: {question}"
A = Document("a", "The first report is about the harvest of the year. " * 6)
B = Document("b", "The second report is about ships and the sea. " * 6)


def asked(engine: RAGCacheEngine, document: Document) -> int:
    """Cached tokens of a question about the document."""
    prompt = TEMPLATE.format(context=document.text, question="Which is the longer one?")
    return engine.generate(prompt, [document]).usage.cached.total


def test_what_is_cached_is_not_even_run_if_only_what_is_missing_is_wanted(
    memory_engine: RAGCacheEngine,
):
    other = Document("c", "The third report is about the weather at sea. " * 6)
    first = memory_engine.warm([[A], [B]], template=TEMPLATE, only_missing=True)
    assert first.computed_tokens > 0
    finished = memory_engine.stats().tiers.ended
    again = memory_engine.warm([[A], [other], [B]], template=TEMPLATE, only_missing=True)
    assert memory_engine.stats().tiers.ended == finished + 1
    assert again.sets == 3
    assert 0 < again.computed_tokens < first.computed_tokens
    assert asked(memory_engine, other) > 0
    awaited = memory_engine.awarm([[A], [other], [B]], template=TEMPLATE, only_missing=True)
    assert asyncio.run(awaited) == Warmed(3, again.prompt_tokens)


def test_many_sets_are_warmed_each_once_whatever_is_held(memory_engine: RAGCacheEngine):
    documents = [Document(f"d{at}", f"Report {at} is about harvest {at}. " * 9) for at in range(50)]
    memory_engine.warm([[one] for one in documents[::3]], template=TEMPLATE)
    finished = memory_engine.stats().tiers.ended
    sets = [[one] for one in documents]
    assert memory_engine.warm(sets, template=TEMPLATE, only_missing=True).sets == 50
    assert memory_engine.stats().tiers.ended == finished + 50 - 17
    assert memory_engine.warm(sets, template=TEMPLATE, only_missing=True).computed_tokens == 0


def test_a_switch_that_is_none_is_refused_before_any_work(memory_engine: RAGCacheEngine):
    with pytest.raises(InvalidArgument, match="only_missing must be True or False, got 'no'"):
        memory_engine.warm([[A]], template=TEMPLATE, only_missing="no")  # type: ignore[arg-type]
    assert memory_engine.stats().tiers.ended == 0


def test_a_model_that_died_is_started_again_and_prefills_all(
    engine_on: Callable[..., RAGCacheEngine],
):
    class DiesWhenAsked(MemoryBackend):
        async def touch_if_cached(self, requests: object) -> list[bool]:
            raise EngineDied("the process is gone")

    engine = engine_on(DiesWhenAsked())
    assert engine.warm([[A], [B]], template=TEMPLATE, only_missing=True).computed_tokens > 0
    assert asked(engine, B) > 0


def test_cancelling_a_warming_ends_its_prefills(engine_on: Callable[..., RAGCacheEngine]):
    def stall(step: int) -> None:
        raise Stall

    engine = engine_on(MemoryBackend(fault=stall))

    async def give_up() -> None:
        warming = asyncio.create_task(engine.awarm([[A], [B]] * 8, template=TEMPLATE))
        while engine.stats().running < WARM_AT_ONCE:
            await asyncio.sleep(0.001)
        warming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await warming
        while engine.stats().running:
            await asyncio.sleep(0.001)

    asyncio.run(give_up())
    assert engine.stats().cancelled == WARM_AT_ONCE


def test_a_prefill_that_fails_ends_a_warming_with_its_error(
    engine_on: Callable[..., RAGCacheEngine],
):
    def fail(step: int) -> None:
        raise GenerationFailed("a step broke")

    engine = engine_on(MemoryBackend(fault=fail))
    with pytest.raises(GenerationFailed, match="a step broke"):
        asyncio.run(engine.awarm([[A], [B]], template=TEMPLATE))


@pytest.mark.parametrize("in_coroutines", [False, True])
def test_a_set_that_cannot_be_prefilled_is_left_out_by_name_and_the_others_go_on(
    memory_engine: RAGCacheEngine, caplog: pytest.LogCaptureFixture, in_coroutines: bool
):
    documents = [Document(f"d{number}", f"{number} words stand here. " * 9) for number in range(40)]
    documents[20] = Document("long", "word " * memory_engine.limits.context_tokens)
    sets = [[one] for one in documents]
    warmed = (
        asyncio.run(memory_engine.awarm(sets, template=TEMPLATE))
        if in_coroutines
        else memory_engine.warm(sets, template=TEMPLATE)
    )
    assert warmed.sets == 39
    ((names, why),) = warmed.left_out
    assert names == ("long",)
    assert "max_model_len" in why
    assert "'long'" in caplog.text
    with pytest.raises(PromptTooLong):
        memory_engine.warm([[documents[20]]], template=TEMPLATE)


def test_what_is_warmed_is_no_answer_and_changes_no_rate():
    sea = [Document(f"sea-{n}", f"What is known about the sea, page {n}. " * 20) for n in range(4)]
    config = EngineConfig(backend="memory", reuse="anywhere", recompute_ratio=0.1)
    with RAGCacheEngine(config) as engine:
        warmed = engine.warm([sea], template="You know the sea.\n\n{context}\n\n{question}")
        assert warmed.sets
        stats = engine.stats()
        assert (stats.finished, stats.approximate, stats.running, stats.failed) == (0, 0, 0, 0)
        assert stats.prompt_tokens == stats.output_tokens == stats.borrowed.total == 0
        assert stats.by_document == ()
        assert engine.recent_requests() == ()
        assert stats.tiers.ended > 0
        prompt = "\n\n".join(["You know the sea.", *(one.text for one in reversed(sea)), "Why?"])
        usage = engine.generate(prompt, sea).usage
        stats = engine.stats()
        assert (stats.finished, stats.approximate) == (1, 1)
        assert stats.borrowed_rate == usage.borrowed.total / usage.prompt_tokens > 0
