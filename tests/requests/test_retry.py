"""Failures of the backend, and what a reader notices of them: nothing, or a named error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from ragcache_engine import (
    Document,
    EngineDied,
    FinishReason,
    GenerationFailed,
    RAGCacheEngine,
    RequestTimedOut,
    SamplingOptions,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.backends.memory.words import split_words
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.requests.retry import Heartbeat, _DeliveredAnswer
from ragcache_engine.values import TokenizedPrompt

EngineOn = Callable[..., RAGCacheEngine]

QUESTION = "one two three four five six"
ANSWER = f"You asked: {QUESTION}"


def failing_at(*steps: int, error: Exception) -> Callable[[int], None]:
    def fault(step: int) -> None:
        if step in steps:
            raise error

    return fault


BROKEN_STEP = GenerationFailed("a step broke")
DEATH = EngineDied("the process is gone")


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("error", [BROKEN_STEP, DEATH], ids=["broken step", "death"])
def test_one_failure_at_any_step_is_not_noticed(engine_on: EngineOn, step: int, error: Exception):
    engine = engine_on(MemoryBackend(fault=failing_at(step, error=error)))
    pieces = list(engine.stream(QUESTION))
    assert "".join(piece.text for piece in pieces) == ANSWER
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.output_tokens == sum(len(piece.token_ids) for piece in pieces)
    assert engine.stats().retried == 1


SEA = [Document(f"sea-{n}", f"What is known about the sea, page {n}. " * 20) for n in range(3)]


@pytest.mark.parametrize("borrows", [True, False])
def test_an_answer_that_goes_on_exactly_may_have_begun_otherwise(
    engine_on: EngineOn, borrows: bool
):
    latest, fails_at = [0], [-1]

    def fault(step: int) -> None:
        latest[0] = step
        if step == fails_at[0]:
            raise DEATH

    backend = MemoryBackend(
        reply=lambda _: "word " * 40, fault=fault, recompute_ratio=0.1, donors_later=True
    )
    engine = engine_on(
        backend,
        reuse="anywhere",
        recompute_ratio=0.1,
        donors="alone",
        missing_donors="later",
        speculation="off",
    )
    engine.warm([SEA[:2], SEA[1:]], template="You know the sea.\n\n{context}\n\n{question}")
    prompt = "\n\n".join(["You know the sea.", *(one.text for one in SEA), "Why?"])
    fails_at[0] = latest[0] + 20  # in the middle of the answer
    with engine.stream(prompt, SEA if borrows else SEA[:1]) as pieces:
        usage = [piece.usage for piece in pieces][-1]
    assert usage is not None
    assert engine.stats().restarts == 1
    assert usage.is_exact is not borrows
    assert (usage.why_exact is None) == borrows  # a prompt of one document is exact in any attempt
    assert "perhaps borrowed" in str(usage) if borrows else "perhaps" not in str(usage)


@pytest.mark.parametrize(
    ("error", "expected"), [(BROKEN_STEP, GenerationFailed), (DEATH, EngineDied)]
)
def test_the_second_failure_of_a_request_is_told(
    engine_on: EngineOn, error: Exception, expected: type[Exception]
):
    engine = engine_on(MemoryBackend(fault=failing_at(2, 4, error=error)))
    with pytest.raises(expected):
        engine.generate(QUESTION)
    assert engine.stats().failed == 1
    assert engine.stats().running == 0


def test_after_a_death_the_engine_serves_the_next_question(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(fault=failing_at(2, 4, error=DEATH)))
    with pytest.raises(EngineDied):
        engine.generate(QUESTION)
    assert engine.generate(QUESTION).text == ANSWER


class CountingStarts(MemoryBackend):
    starts = 0

    async def start(self):  # type: ignore[no-untyped-def]
        self.starts += 1
        return await super().start()


class RestartsWithoutPause(CountingStarts):
    """As vLLM's start and shutdown do: nothing else runs on the loop until they are done."""

    async def close(self) -> None:
        if self._stepper:
            self._stepper.cancel()
        self._stepper = None


@pytest.mark.parametrize("kind", [CountingStarts, RestartsWithoutPause])
def test_a_death_is_mended_once_for_all_requests_it_hit(
    engine_on: EngineOn, kind: type[CountingStarts]
):
    """Also for one that learns of it late: it does not kill what came back."""
    backend = kind(fault=failing_at(3, error=DEATH))
    engine = engine_on(backend)

    async def ask_all() -> list[str]:
        answers = await asyncio.gather(*(engine.agenerate(f"{QUESTION} {n}") for n in range(5)))
        return [answer.text for answer in answers]

    assert asyncio.run(ask_all()) == [f"{ANSWER} {n}" for n in range(5)]
    assert backend.starts == 2


def test_a_request_without_a_token_in_time_is_tried_again(engine_on: EngineOn):
    backend = IgnoresTheFirst()
    engine = engine_on(backend, request_timeout_s=0.05)
    assert engine.generate(QUESTION).text == ANSWER
    assert engine.stats().retried == 1


class IgnoresTheFirst(MemoryBackend):
    """Ignores the first request until it is given up."""

    attempts = 0

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.attempts += 1
        if self.attempts == 1:
            await asyncio.sleep(60)
        async for delta in super().generate(request):
            yield delta


def test_waiting_behind_others_is_no_fault(engine_on: EngineOn):
    """Each request takes longer than the timeout to get its turn; some token comes all the time."""

    async def one_after_the_other() -> list[str]:
        answers = await asyncio.gather(*(engine.agenerate(f"{QUESTION} {n}") for n in range(6)))
        return [answer.text for answer in answers]

    engine = engine_on(OneAtATime(), request_timeout_s=0.2)
    assert asyncio.run(one_after_the_other()) == [f"{ANSWER} {n}" for n in range(6)]
    assert engine.stats().retried == 0


class OneAtATime(MemoryBackend):
    """Serves requests singly, each for longer than half the timeout."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = asyncio.Lock()

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        async with self._turn:
            async for delta in super().generate(request):
                await asyncio.sleep(0.02)
                yield delta


def test_a_request_that_never_gets_a_token_times_out(engine_on: EngineOn):
    def stall(step: int) -> None:
        raise Stall

    engine = engine_on(MemoryBackend(fault=stall), request_timeout_s=0.02)
    with pytest.raises(RequestTimedOut, match="request_timeout_s"):
        engine.generate(QUESTION)


async def wait_for_ever(heartbeat: Heartbeat) -> None:
    async with asyncio.timeout(None) as wait:
        with heartbeat.watch(wait):
            await asyncio.Event().wait()


async def let_eight_expire(heartbeat: Heartbeat) -> None:
    """Fail if one of eight waits does not expire."""
    waits = (wait_for_ever(heartbeat) for _ in range(8))
    results = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), 10)
    assert all(type(result) is TimeoutError for result in results)


def test_a_wait_that_is_slow_to_end_keeps_no_other_from_expiring():
    """A backend may take long to clean up after a request that timed out."""
    faults: list[dict[str, Any]] = []

    async def wait_slowly(heartbeat: Heartbeat, has_expired: asyncio.Event) -> None:
        async with asyncio.timeout(None) as wait:
            with heartbeat.watch(wait):
                try:
                    await asyncio.Event().wait()
                finally:
                    has_expired.set()
                    await asyncio.Event().wait()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        heartbeat, has_expired = Heartbeat(0.01), asyncio.Event()
        slow = asyncio.create_task(wait_slowly(heartbeat, has_expired))
        await has_expired.wait()
        await let_eight_expire(heartbeat)
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)

    asyncio.run(run())
    assert not faults


def test_a_wait_that_has_ended_keeps_no_other_from_expiring():
    async def run() -> None:
        heartbeat = Heartbeat(0.01)
        async with asyncio.timeout(None) as ended:
            pass
        with heartbeat.watch(ended):
            await let_eight_expire(heartbeat)

    asyncio.run(run())


class HoldsTextBack(MemoryBackend):
    """As vLLM does with stop strings: tokens come at once, their text two tokens later."""

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        held: list[str] = []
        async for delta in super().generate(request):
            held.append(delta.text)
            last = delta.finish_reason is not None
            ready = len(held) if last else max(0, len(held) - 2)
            text, held = "".join(held[:ready]), held[ready:]
            yield Delta(text, delta.token_ids, delta.cached, delta.finish_reason)


@pytest.mark.parametrize("step", range(1, 8))
def test_text_held_back_by_a_failed_attempt_is_not_lost(engine_on: EngineOn, step: int):
    engine = engine_on(HoldsTextBack(fault=failing_at(step, error=BROKEN_STEP)))
    assert engine.generate(QUESTION).text == ANSWER


PENALTIES = {
    "presence": SamplingOptions(presence_penalty=0.5),
    "frequency": SamplingOptions(frequency_penalty=-0.5),
}


@pytest.mark.parametrize("step", range(1, 8))
@pytest.mark.parametrize("penalty", PENALTIES)
def test_a_penalty_counts_the_whole_answer_across_a_failure(
    engine_on: EngineOn, step: int, penalty: str
):
    engine = engine_on(CountsItsOwnTokens(fault=failing_at(step, error=BROKEN_STEP)))
    assert engine.generate(QUESTION, options=PENALTIES[penalty]).text == ANSWER
    assert engine.stats().retried == 1


class CountsItsOwnTokens(MemoryBackend):
    """As a penalty on output tokens: the next word depends on how many this attempt has generated."""

    def _answer(self, request: BackendRequest) -> list[str]:
        return split_words(ANSWER)


def test_a_repetition_penalty_counts_the_prompt_too_so_the_answer_goes_on(engine_on: EngineOn):
    backend = RememberingRequests(fault=failing_at(4, error=BROKEN_STEP))
    options = SamplingOptions(repetition_penalty=1.5)
    assert engine_on(backend).generate(QUESTION, options=options).text == ANSWER
    assert [len(asked.prompt) for asked in backend.asked] == [6, 10]


class RememberingRequests(MemoryBackend):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.asked: list[BackendRequest] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.asked.append(request)
        async for delta in super().generate(request):
            yield delta


class CountedIds(tuple[int, ...]):
    """Token ids that count how many tokens are copied to join them to others."""

    copied = 0

    def __radd__(self, other: tuple[int, ...]) -> tuple[int, ...]:
        CountedIds.copied += len(other) + len(self)
        return (*other, *self)


class CountedText(str):
    copied = 0

    def __radd__(self, other: str) -> str:
        CountedText.copied += len(other) + len(self)
        return "".join((other, self))


@pytest.mark.parametrize("starts_over", [False, True], ids=["first attempt", "second attempt"])
def test_a_delta_costs_the_same_however_long_the_answer_is(starts_over: bool):
    delivered = _DeliveredAnswer()
    request = BackendRequest("r", TokenizedPrompt("?", (0,), ()), (), PENALTIES["presence"])
    CountedIds.copied = CountedText.copied = 0
    for attempt in range(1 + starts_over):
        delivered.request_rest(request)
        delivered.begin_attempt(MemoryBackend(), request)
        for token in range(1000):
            delta = delivered.add(Delta(CountedText("w "), CountedIds((token,))), ())
            assert (delta.text, delta.token_ids) == (("", ()) if attempt else ("w ", (token,)))
    assert CountedIds.copied == CountedText.copied == 0


@pytest.mark.parametrize("step", [6, 7], ids=["inside it", "before it was shown"])
def test_a_stop_string_across_a_failure_still_stops(engine_on: EngineOn, step: int):
    engine = engine_on(StopsNowhere(fault=failing_at(step, error=BROKEN_STEP)))
    stop = SamplingOptions(stop=("three four",))
    answer = engine.generate(QUESTION, options=stop)
    assert answer.text == "You asked: one two "
    assert answer.finish_reason is FinishReason.STOP


class StopsNowhere(HoldsTextBack):
    """Leaves stop strings to the engine, so that only what the engine does about them shows."""

    def _answer(self, request: BackendRequest) -> list[str]:
        options = SamplingOptions(max_tokens=request.options.max_tokens)
        return super()._answer(
            BackendRequest(request.request_id, request.prompt, request.segments, options)
        )


class SentencePiece(MemoryBackend):
    """Its tokenizer drops the space before the first word of a text, as SentencePiece does."""

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return super().detokenize(token_ids, skip_special_tokens).removeprefix(" ")


def test_no_character_is_lost_where_a_tokenizer_drops_the_first_space():
    backend = SentencePiece()
    prompt = backend.tokenize("Why?")
    answer = backend.tokenize(" Because it is so").token_ids
    request = BackendRequest("r", prompt, (), SamplingOptions())
    delivered = _DeliveredAnswer()
    delivered.add(Delta(" Because it", answer[:3]), ())  # the text of one token is held back
    delivered.begin_attempt(backend, request)
    assert delivered.held_back == " is"
