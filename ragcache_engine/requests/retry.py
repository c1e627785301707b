"""Runs one request, and runs it a second time if the first attempt fails, without the reader noticing.

A request that fails before its first token starts again from scratch. One that fails later continues
from its prompt and the tokens that the reader already has; greedy decoding makes that the same answer.
Where it would not be the same, as with a guide or with penalties on the answer's tokens, the request
starts again too, and the reader gets what it does not have yet. So it sees no gap and no repetition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace

from ragcache_engine.errors import EngineDied, GenerationFailed, RequestTimedOut
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.values import FinishReason, TokenizedPrompt

ATTEMPTS = 2

OnFailure = Callable[[Exception], Awaitable[None]]
"""Called with the failure before the second attempt, to count it and restart a dead backend."""


class Heartbeat:
    """Ends the waits of all requests once the backend has shown no token of any request for timeout_s.

    A long wait in the queue behind other requests is no failure; silence of the whole backend is. One
    timer serves every request, so a token costs one look at the clock.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._last_beat_s = 0.0
        self._waiting: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        """Note that the backend has just shown a token."""
        self._last_beat_s = asyncio.get_running_loop().time()

    @contextmanager
    def watch(self, wait: asyncio.Timeout) -> Iterator[None]:
        """Make `wait` expire if the backend falls silent inside the block."""
        if not self._waiting:
            self.beat()
        self._waiting.add(wait)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.timeout_s, self._check)
        try:
            yield
        finally:
            self._waiting.discard(wait)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if not self._waiting:
            return
        silent_s = loop.time() - self._last_beat_s
        if silent_s < self.timeout_s:
            self._timer = loop.call_later(self.timeout_s - silent_s, self._check)
            return
        # Each wait expires once: it may take long to end, and asyncio refuses to expire it again.
        expiring, self._waiting = self._waiting, set()
        for wait in expiring:
            with suppress(RuntimeError):  # one that has ended must not keep the others waiting
                wait.reschedule(loop.time())


async def run_with_retry(
    backend: Backend,
    request: BackendRequest,
    heartbeat: Heartbeat,
    on_failure: OnFailure,
    begun: AsyncGenerator[Delta, None] | None = None,
) -> AsyncGenerator[Delta, None]:
    """Yield the request's deltas, the last one with a finish_reason.

    begun: the deltas of this very request, if a speculation has begun it. They count as the first
      attempt.
    Raises RequestTimedOut, GenerationFailed or EngineDied if the second attempt fails as well.
    """
    delivered = _DeliveredAnswer()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if begun and attempt == 1:
                generated = begun
            else:
                generated = backend.generate(delivered.request_rest(request))
            async with aclosing(_end_when_silent(generated, request, heartbeat)) as deltas:
                delivered.begin_attempt(backend, request)
                async for delta in deltas:
                    delta = delivered.add(delta, request.options.stop)
                    yield delta
                    if delta.finish_reason:
                        return
            raise GenerationFailed("the backend ended the answer without saying why; ask again")
        except (RequestTimedOut, GenerationFailed, EngineDied) as failure:
            if attempt == ATTEMPTS or not delivered.may_go_on(request):
                raise
            await on_failure(failure)


async def _end_when_silent(
    generated: AsyncGenerator[Delta, None], request: BackendRequest, heartbeat: Heartbeat
) -> AsyncGenerator[Delta, None]:
    """Yield the deltas as they come. Raises RequestTimedOut once the whole backend has fallen silent."""
    async with aclosing(generated) as deltas:
        while True:
            # Not wait_for: in Python 3.11 it can swallow a cancellation that comes with the token.
            try:
                async with asyncio.timeout(None) as wait:
                    with heartbeat.watch(wait):
                        delta = await anext(deltas)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise RequestTimedOut(
                    f"the engine showed no token for {heartbeat.timeout_s:g} s while request "
                    f"{request.request_id} waited; raise request_timeout_s if prompts take that long"
                ) from None
            heartbeat.beat()
            yield delta


@dataclass(slots=True)
class _DeliveredAnswer:
    """Joins a second attempt to the part of an answer that the reader already has.

    token_ids, texts: what the reader has. They are lists, so that a delta costs the same wherever in
      the answer it comes.
    held_back: text of delivered tokens that the failed attempt kept back, because it might become a
      stop string. The next attempt knows nothing of this text.
    fresh_characters: how many characters the next attempt has added so far.
    starts_over: whether the next attempt generates the whole answer again, from its first token.
    repeated_tokens, repeated_characters: how much it has generated so far.
    """

    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    held_back: str = ""
    fresh_characters: int = 0
    starts_over: bool = False
    repeated_tokens: int = 0
    repeated_characters: int = 0

    def may_go_on(self, request: BackendRequest) -> bool:
        """Return whether another attempt can bring what the reader does not have yet.

        A backend that reads text takes no tokens of an answer. It may also be another one by now.
        """
        return isinstance(request.prompt, TokenizedPrompt) or not (
            self.token_ids or any(self.texts)
        )

    def request_rest(self, request: BackendRequest) -> BackendRequest:
        """Return the request for the missing rest of the answer."""
        if not self.token_ids:
            return request
        if request.options.depend_on_start:
            self.starts_over = True
            return replace(request, request_id=f"{request.request_id}-again")
        return request.continued_after(self.token_ids)

    def begin_attempt(self, backend: Backend, request: BackendRequest) -> None:
        """Work out which text of the delivered tokens the reader has not got yet."""
        self.texts = ["".join(self.texts)]
        if self.token_ids and not self.starts_over:
            self.held_back = self._write_answer(backend, request)[len(self.texts[0]) :]
            self.fresh_characters = 0

    def _write_answer(self, backend: Backend, request: BackendRequest) -> str:
        """Return the text of the delivered tokens, as it stands behind the prompt.

        SentencePiece drops the space before the first word of a text, so the answer alone is too short.
        """
        skips, prompt_ids = request.options.skip_special_tokens, request.tokens.token_ids
        prompt = backend.detokenize(prompt_ids, skips)
        text = backend.detokenize([*prompt_ids, *self.token_ids], skips)
        if text.startswith(prompt + self.texts[0]):
            return text[len(prompt) :]
        return backend.detokenize(self.token_ids, skips)

    def add(self, delta: Delta, stop: tuple[str, ...]) -> Delta:
        """Return what the reader is to get for this delta, and note it as delivered."""
        if self.starts_over:
            return self._drop_repeated(delta)
        if self.held_back:
            delta = self._prepend_held_back(delta, stop)
        self.token_ids.extend(delta.token_ids)
        self.texts.append(delta.text)
        return delta

    def _drop_repeated(self, delta: Delta) -> Delta:
        """Return the part of the delta that the reader does not have yet.

        Raises GenerationFailed if the attempt generates another answer than the first one did.
        """
        had_text = self.texts[0]  # begin_attempt has joined them, and nothing is noted after that
        text_at, tokens_at = self.repeated_characters, self.repeated_tokens
        self.repeated_characters += len(delta.text)
        self.repeated_tokens += len(delta.token_ids)
        repeated_text = had_text[text_at : self.repeated_characters]
        repeated_ids = tuple(self.token_ids[tokens_at : self.repeated_tokens])
        if (
            not delta.text.startswith(repeated_text)
            or delta.token_ids[: len(repeated_ids)] != repeated_ids
            or (delta.finish_reason and self.repeated_characters < len(had_text))
        ):
            raise GenerationFailed(
                "the backend failed in the middle of an answer, and drew another one when it was "
                "asked again; ask again, or give a seed"
            )
        return replace(
            delta,
            text=delta.text[len(repeated_text) :],
            token_ids=delta.token_ids[len(repeated_ids) :],
            logprobs=delta.logprobs[len(repeated_ids) :],
        )

    def _prepend_held_back(self, delta: Delta, stop: tuple[str, ...]) -> Delta:
        """Put the held-back text in front, and look for stop strings that span both attempts.

        Each attempt sees only the stop strings inside its own text.
        """
        text = self.held_back + delta.text
        self.fresh_characters += len(delta.text)
        longest_span = max(map(len, stop), default=1) - 1
        ends = [at for word in stop if (at := text.find(word)) >= 0]
        if ends:
            self.held_back = ""
            return replace(delta, text=text[: min(ends)], finish_reason=FinishReason.STOP)
        if delta.finish_reason or self.fresh_characters >= longest_span:
            self.held_back = ""
            return replace(delta, text=text)
        ready = max(0, len(text) - longest_span)
        self.held_back = text[ready:]
        return replace(delta, text=text[:ready])
