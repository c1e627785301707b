"""One request, tried twice if it must be: what a reader gets has no gap and no repeat.

A request that fails before its first token starts again from scratch. One that fails later goes on
from its prompt and the tokens already handed out; greedy decoding makes that the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from ragcache_engine.errors import EngineDied, GenerationFailed, RequestTimedOut
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.values import FinishReason, TokenizedPrompt

ATTEMPTS = 2

OnFailure = Callable[[Exception], Awaitable[None]]
"""Called before the second attempt, with the reason: counts it, or brings the backend back up."""


class Heartbeat:
    """Ends the waits of all requests once the backend has shown no token, of any of them, for timeout_s.

    Queueing behind others is no failure, however long; silence of the whole backend is. One timer
    serves every request, so a token costs no more than a look at the clock.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._last_s = 0.0
        self._waiting: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None

    def beat(self) -> None:
        self._last_s = asyncio.get_running_loop().time()

    @contextmanager
    def waiting(self, wait: asyncio.Timeout) -> Iterator[None]:
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
        quiet_s = loop.time() - self._last_s
        if quiet_s < self.timeout_s:
            self._timer = loop.call_later(self.timeout_s - quiet_s, self._check)
            return
        for wait in self._waiting:
            wait.reschedule(loop.time())


async def run_with_retry(
    backend: Backend,
    request: BackendRequest,
    heartbeat: Heartbeat,
    on_failure: OnFailure,
    begun: AsyncGenerator[Delta, None] | None = None,
) -> AsyncGenerator[Delta, None]:
    """Yield the request's deltas, the last one with a finish_reason.

    begun: the deltas of this very request, if it is under way already; that is the first attempt.
    Raises RequestTimedOut, GenerationFailed or EngineDied if the second attempt fails as well.
    """
    progress = _Progress()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            generated = (
                begun if begun and attempt == 1 else backend.generate(progress.rest_of(request))
            )
            async with aclosing(_timed(generated, request, heartbeat)) as deltas:
                progress.resume(backend, request.options.skip_special_tokens)
                async for delta in deltas:
                    delta = progress.take(delta, request.options.stop)
                    yield delta
                    if delta.finish_reason:
                        return
            raise GenerationFailed("the backend ended the answer without saying why; ask again")
        except (RequestTimedOut, GenerationFailed, EngineDied) as failure:
            if attempt == ATTEMPTS:
                raise
            await on_failure(failure)


async def _timed(
    generated: AsyncGenerator[Delta, None], request: BackendRequest, heartbeat: Heartbeat
) -> AsyncGenerator[Delta, None]:
    async with aclosing(generated) as deltas:
        while True:
            # Not wait_for: in Python 3.11 it can swallow a cancel that comes with the token.
            try:
                async with asyncio.timeout(None) as wait:
                    with heartbeat.waiting(wait):
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
class _Progress:
    """What the reader already has."""

    token_ids: tuple[int, ...] = ()
    text: str = ""
    # Text of handed-out tokens that the failed attempt still held back, to see if it becomes a stop
    # string. The next attempt knows nothing of it.
    held_back: str = ""
    # Characters the next attempt has brought since.
    fresh: int = 0
    # The next attempt draws the whole answer again; so much of it has come.
    repeats: bool = False
    again_text: str = ""
    again_ids: tuple[int, ...] = ()

    def rest_of(self, request: BackendRequest) -> BackendRequest:
        """The request for what is still missing."""
        if not self.token_ids:
            return request
        if request.options.guide:  # it begins with the answer, and cannot be taken up inside it
            self.repeats = True
            return replace(request, request_id=f"{request.request_id}-again")
        prompt, most = request.prompt, request.options.max_tokens
        longer = TokenizedPrompt(prompt.text, (*prompt.token_ids, *self.token_ids), prompt.offsets)
        options = replace(
            request.options, max_tokens=None if most is None else most - len(self.token_ids)
        )
        return replace(
            request, request_id=f"{request.request_id}-resumed", prompt=longer, options=options
        )

    def resume(self, backend: Backend, skip_special_tokens: bool) -> None:
        if self.token_ids and not self.repeats:
            said = backend.detokenize(self.token_ids, skip_special_tokens)
            self.held_back = said[len(self.text) :]
            self.fresh = 0

    def take(self, delta: Delta, stop: tuple[str, ...]) -> Delta:
        """Note what the delta brings; put text held back by a failed attempt in front of it."""
        if self.repeats:
            return self._not_repeated(delta)
        if self.held_back:
            delta = self._after_held_back(delta, stop)
        self.token_ids += delta.token_ids
        self.text += delta.text
        return delta

    def _not_repeated(self, delta: Delta) -> Delta:
        """What the reader does not have yet, of an answer that is drawn from its beginning again."""
        text, token_ids = self.again_text + delta.text, self.again_ids + delta.token_ids
        shared, tokens = min(len(text), len(self.text)), min(len(token_ids), len(self.token_ids))
        if text[:shared] != self.text[:shared] or (
            token_ids[:tokens] != self.token_ids[:tokens]
            or (delta.finish_reason and len(text) < len(self.text))
        ):
            raise GenerationFailed(
                "the backend failed in the middle of an answer, and drew another one when it was "
                "asked again; ask again, or give a seed"
            )
        new = replace(
            delta,
            text=text[max(len(self.again_text), len(self.text)) :],
            token_ids=token_ids[max(len(self.again_ids), len(self.token_ids)) :],
        )
        self.again_text, self.again_ids = text, token_ids
        return new

    def _after_held_back(self, delta: Delta, stop: tuple[str, ...]) -> Delta:
        """Look for stop strings across the two attempts; each sees those inside its own text."""
        text = self.held_back + delta.text
        self.fresh += len(delta.text)
        across = max(map(len, stop), default=1) - 1
        ends = [at for word in stop if (at := text.find(word)) >= 0]
        if ends:
            self.held_back = ""
            return replace(delta, text=text[: min(ends)], finish_reason=FinishReason.STOP)
        if delta.finish_reason or self.fresh >= across:
            self.held_back = ""
            return replace(delta, text=text)
        ready = max(0, len(text) - across)
        self.held_back = text[ready:]
        return replace(delta, text=text[:ready])
