"""What every engine promises, held against the fake and against real vLLM."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragcache_engine import (
    Document,
    EngineConfig,
    EngineError,
    FinishReason,
    RAGCacheEngine,
    SamplingOptions,
)

SLICES = Document("slices", "A slicing selects a range of items in a sequence object. " * 8)
WITH = Document("with", "The with statement wraps a block with a context manager's methods. " * 8)
TWELVE = SamplingOptions(max_tokens=12)
ENDLESS = SamplingOptions(max_tokens=None, ignore_eos=True)
FOR_EVER = "Count for ever: one two three " * 60


def prompt_of(*documents: Document, question: str = "What is a slice?") -> str:
    passages = "\n\n".join(document.text for document in documents)
    return (
        f"<|im_start|>user\nUse the passages.\n\n{passages}\n\nQuestion: {question}<|im_end|>\n"
        f"<|im_start|>assistant\n"
    )


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_an_answer_is_what_its_stream_says_piece_by_piece(engine: RAGCacheEngine):
    prompt = prompt_of(SLICES)
    answer = engine.generate(prompt, options=TWELVE)
    pieces = list(engine.stream(prompt, options=TWELVE))
    assert "".join(piece.text for piece in pieces) == answer.text
    assert sum((piece.token_ids for piece in pieces), ()) == answer.token_ids
    assert [bool(piece.usage) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_the_four_faces_give_one_answer(engine: RAGCacheEngine):
    prompt = prompt_of(WITH)

    async def asked() -> tuple[str, str]:
        whole = await engine.agenerate(prompt, options=TWELVE)
        pieces = [piece async for piece in engine.astream(prompt, options=TWELVE)]
        return whole.text, "".join(piece.text for piece in pieces)

    expected = engine.generate(prompt, options=TWELVE).text
    assert asyncio.run(asked()) == (expected, expected)


def test_a_document_seen_before_is_not_prefilled_again(engine: RAGCacheEngine):
    engine.clear_cache()
    first = engine.generate(prompt_of(SLICES, WITH, question="What is with?"), options=TWELVE)
    second = engine.generate(prompt_of(SLICES, WITH, question="And a slice?"), options=TWELVE)
    block = engine.limits.block_tokens
    assert first.usage.cached.total == 0
    assert second.usage.cached.device >= 128 - block
    assert second.usage.cached.device % block == 0
    assert second.usage.computed_tokens + second.usage.cached.total == second.usage.prompt_tokens


def test_a_cleared_cache_is_cold(engine: RAGCacheEngine):
    prompt = prompt_of(SLICES, WITH)
    engine.generate(prompt, options=TWELVE)
    engine.clear_cache()
    assert engine.generate(prompt, options=TWELVE).usage.cached.total == 0


def test_the_cache_is_not_cleared_under_a_running_request(engine: RAGCacheEngine):
    with engine.stream(FOR_EVER, options=ENDLESS) as stream:
        next(stream)
        with pytest.raises(EngineError, match="wait"):
            engine.clear_cache()


def test_max_tokens_ends_an_answer_for_its_length(engine: RAGCacheEngine):
    answer = engine.generate(prompt_of(SLICES), options=SamplingOptions(max_tokens=3))
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.token_ids) == answer.usage.output_tokens == 3


def test_a_stop_string_ends_an_answer_and_is_not_part_of_it(engine: RAGCacheEngine):
    whole = engine.generate(prompt_of(SLICES), options=TWELVE).text
    stop = whole.split()[2]
    cut = engine.generate(prompt_of(SLICES), options=SamplingOptions(max_tokens=12, stop=(stop,)))
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == whole[: whole.index(stop)]


def test_many_threads_and_tasks_get_the_answers_they_would_get_alone(engine: RAGCacheEngine):
    prompts = [prompt_of(SLICES, question=f"What is item {n}?") for n in range(6)]
    alone = [engine.generate(prompt, options=TWELVE).text for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        threads = list(pool.map(lambda p: engine.generate(p, options=TWELVE).text, prompts))

    async def together() -> list[str]:
        answers = await asyncio.gather(*(engine.agenerate(p, options=TWELVE) for p in prompts))
        return [answer.text for answer in answers]

    assert threads == alone
    assert asyncio.run(together()) == alone


def test_an_engine_dropped_while_its_stream_is_read_goes_on():
    stream = RAGCacheEngine(EngineConfig(model="any", backend="memory")).stream("Still there?")
    gc.collect()
    assert "".join(piece.text for piece in stream) == "You asked: Still there?"
