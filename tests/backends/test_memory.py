"""The engine without a model behaves as vLLM does where it matters to a chain: blocks, steps, clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import RAGCacheEngine, SamplingOptions
from ragcache_engine.backends.memory import MemoryBackend, echo

EngineOn = Callable[..., RAGCacheEngine]

SHORT = SamplingOptions(max_tokens=2)


@given(st.text(max_size=200))
def test_tokens_cover_the_text(text: str):
    backend = MemoryBackend()
    prompt = backend.tokenize(text)
    assert "".join(text[start:end] for start, end in prompt.offsets) == text
    assert backend.detokenize(prompt.token_ids) == text


def test_the_default_reply_repeats_the_last_line():
    assert echo("Context\n\nQuestion: Why?\n") == "You asked: Question: Why?"


def test_only_whole_blocks_are_reused_and_the_last_token_is_always_computed(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(block_tokens=4))
    prompt = "a b c d e f g h"
    assert engine.generate(prompt, options=SHORT).usage.cached.device == 0
    assert engine.generate(prompt, options=SHORT).usage.cached.device == 4
    assert engine.generate(f"{prompt} i", options=SHORT).usage.cached.device == 8


def test_a_full_device_forgets_what_was_used_least_recently(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(block_tokens=4, device_blocks=5, policy="lru"))
    engine.generate("a b c d e f g h i", options=SHORT)
    engine.generate("z y x w v", options=SHORT)
    engine.generate("q q q q q q q q q q q q q", options=SHORT)
    assert engine.generate("z y x w v", options=SHORT).usage.cached.device == 4
    assert engine.generate("a b c d e f g h i", options=SHORT).usage.cached.device == 0


def test_time_is_what_the_steps_cost_and_repeats_exactly(engine_on: EngineOn):
    def seconds(cached: int, computed: int) -> float:
        return computed / 10

    usages = [
        engine_on(MemoryBackend(block_tokens=4, prefill_s=seconds, decode_s=1.0))
        .generate("a b c d e f g h", options=SamplingOptions(max_tokens=3))
        .usage
        for _ in range(2)
    ]
    assert [usage.ttft_s for usage in usages] == [0.8, 0.8]
    assert [usage.total_s for usage in usages] == pytest.approx([2.8, 2.8])


def test_a_long_prompt_is_prefilled_in_several_steps(engine_on: EngineOn):
    chunks: list[tuple[int, int]] = []

    def noted(cached: int, computed: int) -> float:
        chunks.append((cached, computed))
        return 0.0

    engine = engine_on(MemoryBackend(step_tokens=5, prefill_s=noted))
    engine.generate("a b c d e f g h i j k l", options=SHORT)
    assert chunks == [(0, 5), (5, 5), (10, 2)]
