"""What every engine promises, held against the fake and against real vLLM."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress

import pytest

from ragcache_engine import (
    Document,
    EmptyPrompt,
    EngineConfig,
    EngineError,
    FinishReason,
    PromptTooLong,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.protocols import BackendRequest, Delta

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


def test_documents_retrieved_through_the_engine_are_recognised_in_the_prompt(
    engine: RAGCacheEngine,
):
    with engine.retrieval("What is a slice?") as retrieval:
        retrieval.found([WITH, SLICES])
    usage = engine.generate(prompt_of(SLICES, WITH), options=TWELVE).usage
    assert usage.document_ids == ("slices", "with")


def test_documents_may_be_given_with_the_prompt(engine: RAGCacheEngine):
    usage = engine.generate(prompt_of(SLICES, WITH), [SLICES], options=TWELVE).usage
    assert usage.document_ids == ("slices",)


def test_the_time_of_a_retrieval_counts_once(engine: RAGCacheEngine):
    with engine.retrieval("How long?") as retrieval:
        engine.generate(prompt_of(question="busy"), options=TWELVE)  # moves either clock
        retrieval.found([SLICES])
    first = engine.generate(prompt_of(SLICES, question="How long?"), options=TWELVE).usage
    again = engine.generate(prompt_of(SLICES, question="How long?"), options=TWELVE).usage
    assert first.retrieval_s > 0
    assert first.total_s >= first.ttft_s >= first.retrieval_s
    assert again.retrieval_s == 0


def test_a_retrieval_that_fails_is_not_remembered(engine: RAGCacheEngine):
    failed = Document("failed", "Text of a search that broke before it was done. " * 4)
    with suppress(OSError), engine.retrieval("?") as retrieval:
        retrieval.found([failed])
        raise OSError("the search broke")
    assert engine.generate(prompt_of(failed), options=TWELVE).usage.document_ids == ()


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_leaving_a_stream_early_cancels_its_request(engine: RAGCacheEngine, leave: str):
    before = engine.stats().cancelled
    stream = engine.stream(FOR_EVER, options=ENDLESS)
    if leave == "close":
        stream.close()
        assert list(stream) == []
    elif leave == "with":
        with stream:
            pass
    del stream
    gc.collect()
    assert eventually(lambda: engine.stats().cancelled == before + 1)
    assert eventually(lambda: engine.stats().running == 0)


def test_leaving_an_async_stream_early_cancels_its_request(engine: RAGCacheEngine):
    before = engine.stats().cancelled

    async def read_nothing_more_than_one() -> None:
        stream = engine.astream(FOR_EVER, options=ENDLESS)
        await anext(stream)
        await stream.aclose()

    asyncio.run(read_nothing_more_than_one())
    assert eventually(lambda: engine.stats().cancelled == before + 1)


def test_cancelling_the_task_of_an_async_caller_cancels_its_request(engine: RAGCacheEngine):
    before = engine.stats()

    async def cancelled() -> None:
        asking = asyncio.create_task(engine.agenerate(FOR_EVER, options=ENDLESS))
        while engine.stats().running == before.running:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(cancelled())
    assert eventually(lambda: engine.stats().running == 0)
    assert engine.stats().cancelled == before.cancelled + 1


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


def test_the_counters_add_up(engine: RAGCacheEngine):
    before = engine.stats()
    usages = [engine.generate(prompt_of(WITH), options=TWELVE).usage for _ in range(2)]
    after = engine.stats()
    assert after.finished - before.finished == 2
    assert after.prompt_tokens - before.prompt_tokens == sum(u.prompt_tokens for u in usages)
    assert after.cached.total - before.cached.total == sum(u.cached.total for u in usages)
    assert after.running == 0
    assert 0 < after.hit_ratio() <= 1


def test_who_has_the_whole_answer_finds_it_counted(engine_on: Callable[..., RAGCacheEngine]):
    class Lingering(MemoryBackend):
        async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
            async with aclosing(super().generate(request)) as deltas:
                try:
                    async for delta in deltas:
                        yield delta
                finally:
                    await asyncio.sleep(0.2)

    engine = engine_on(Lingering())
    for piece in engine.stream("Why?", options=TWELVE):
        if piece.usage:
            assert (engine.stats().finished, engine.stats().running) == (1, 0)
    assert engine.stats().finished == 1


def test_an_empty_prompt_is_refused(engine: RAGCacheEngine):
    with pytest.raises(EmptyPrompt, match="template"):
        engine.generate("")


def test_a_prompt_longer_than_the_context_is_refused_before_any_work(engine: RAGCacheEngine):
    before = engine.stats()
    with pytest.raises(PromptTooLong, match="fewer or shorter documents"):
        engine.stream("word " * (engine.limits.context_tokens + 1))
    assert engine.stats() == before


def test_a_prompt_that_is_no_text_is_refused(engine: RAGCacheEngine):
    with pytest.raises(TypeError, match="string"):
        engine.generate(["a", "list"])  # type: ignore[arg-type]


def test_an_engine_dropped_while_its_stream_is_read_goes_on():
    stream = RAGCacheEngine(EngineConfig(model="any", backend="memory")).stream("Still there?")
    gc.collect()
    assert "".join(piece.text for piece in stream) == "You asked: Still there?"
