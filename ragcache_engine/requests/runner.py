"""Runs requests on the engine's loop: from the speculation that may have begun them to the last token."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import BadRequest, EngineClosed, EngineDied, RequestTimedOut
from ragcache_engine.observing.request_log import RequestLog
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.requests.retry import Heartbeat, run_with_retry
from ragcache_engine.requests.streams import START, Item
from ragcache_engine.speculation import Pipeline
from ragcache_engine.tiers.borrowing.plan import TRANSIENT_REASONS
from ragcache_engine.values import CachedTokens, ChatPrompt, Piece, SpeculationOutcome, Usage

logger = logging.getLogger(__name__)

RESTART_WAITS_S = (0.0, 1.0, 5.0)
"""Seconds before each attempt to start a dead backend: memory that was short may be free by then."""

LEARNED_AT_ONCE = 2
"""From how many prompts to learn at a time."""

LEARN_S = 1.0
"""How long a whole answer waits until its prompt was learned from. A template may be the caller's
function, and that may take any time."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked and tokenised prompt, with what the engine knows about its documents.

    document_ids: the documents recognised in the prompt, in its order. repeated_ids: as in Usage.
    question_s: when the question began: when its retrieval began if there was one, else called_s.
    called_s: when the engine got the prompt. Both are seconds on the backend's clock.
    search_number: the number by which speculation knows the prompt's search; None without a retrieval.
    learn: call this while the prompt is prefilled, to learn how the chain writes its prompts; None
      if no retrieval led to the prompt.
    count_hits: call this with what the finished request cost.
    chat_prompt: the prompt, if a chat template wrote it.
    timeout_s: how long its whole answer may take; None: any time.
    when_answered: call this when it is answered. Returns at once.
    """

    request: BackendRequest
    document_ids: tuple[str, ...]
    question_s: float
    called_s: float
    search_number: int | None = None
    learn: Callable[[], None] | None = None
    count_hits: Callable[[Usage], None] | None = None
    repeated_ids: tuple[str, ...] = ()
    chat_prompt: ChatPrompt | None = None
    timeout_s: float | None = None
    when_answered: Callable[[], None] | None = None


class RequestRunner:
    """Runs prepared requests and counts them; restarts the backend if it dies under them.

    All methods belong to the engine's loop where they do not say otherwise.
    stats: the engine's counters, without those of the tiers and of speculation. The runner replaces
      this value and never changes it, so any thread may read it.
    log: the last answered requests.
    """

    def __init__(self, backend: Backend, pipeline: Pipeline, heartbeat: Heartbeat) -> None:
        self._backend = backend
        self._pipeline = pipeline
        self._heartbeat = heartbeat
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._restart: asyncio.Task[None] | None = None
        self._given_up: str | None = None
        self._is_closing = False
        self._learners = DaemonThreads(LEARNED_AT_ONCE, "ragcache-learning")
        self._learners_hang = False
        self._is_up = threading.Event()
        self._is_up.set()
        self.stats = CacheStats()
        self.log = RequestLog()

    async def run(self, prepared: PreparedRequest, put: Callable[[Item], None]) -> None:
        """Answer one request, giving `put` its pieces and then None, or the error that ended it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.stats = replace(self.stats, running=self.stats.running + 1)
        is_counted = False
        is_warming = prepared.request.makes_donors  # nobody has asked for its answer
        restarts = self._restarts
        limit = asyncio.timeout(prepared.timeout_s)
        try:
            self._require_not_closing()
            async with limit, aclosing(self._generate_pieces(prepared, limit)) as pieces:
                async for piece in pieces:
                    if piece.usage:
                        if not limit.expired():  # whoever has the whole answer needs no more
                            limit.reschedule(None)
                        # Count first: a reader that has the whole answer must find it in `stats`.
                        self._count_end(None if is_warming else piece.usage)
                        is_counted = True
                        if prepared.count_hits and not is_warming:
                            prepared.count_hits(piece.usage)
                    put(piece)
            put(None)
            if prepared.when_answered:
                prepared.when_answered()
        except asyncio.CancelledError:
            put(EngineClosed("the engine was closed while this request ran; make a new one"))
            raise
        except Exception as failure:
            error = failure
            if limit.expired():
                error = RequestTimedOut(
                    f"the answer was not complete after the request's own timeout of "
                    f"{prepared.timeout_s:g} s: give it more time, or ask for fewer tokens"
                )
            if not is_counted:
                # A server refuses a bad request here; other backends' were refused, uncounted, before.
                self._count_end(failed=int(not isinstance(error, BadRequest)))
                is_counted = True
            # The process lives, and hears nothing. Somebody else's server is not ours to start again.
            is_silent = isinstance(error, RequestTimedOut) and not limit.expired()
            if is_silent and not self._backend.reads_text:
                silence = EngineDied("the model's process has answered nothing twice in a row")
                self._begin_restart(restarts, silence)
            put(error)
            del error  # it refers to this frame
        finally:
            self._tasks.discard(task)
            if not is_counted:
                self._count_end(cancelled=int(task.cancelling() > 0))
            del (
                task
            )  # if it was cancelled, it refers to this frame, and so to the backend's generator

    async def cancel_all(self) -> None:
        """Cancel every running request and wait until all of them have ended.

        A request that comes later ends with EngineClosed, and nothing is started for it.
        """
        self._is_closing = True
        tasks = [task for task in self._tasks if not task.done()]
        if self._restart is not None:
            tasks.append(self._restart)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _generate_pieces(
        self, prepared: PreparedRequest, limit: asyncio.Timeout
    ) -> AsyncGenerator[Piece, None]:
        request, now = prepared.request, self._backend.now
        cached, first_token_s, output_tokens = CachedTokens(), None, 0
        prompt_tokens = request.expected_tokens
        # Before the first attempt: by the time a request learns of a death, others that it hit may
        # have brought the backend up again.
        restarts, lost_tokens = self._restarts, 0
        reader = self._backend.reasoning_reader(request)

        async def recover(failure: Exception) -> None:
            nonlocal lost_tokens
            lost_tokens = output_tokens
            claim.attempt_failed()
            self.stats = replace(self.stats, retried=self.stats.retried + 1)
            if isinstance(failure, EngineDied):
                with _not_counting(limit):
                    await self._restart_backend(restarts, failure)

        with self._pipeline.claim(request, prepared.search_number) as claim:
            generated = run_with_retry(
                self._backend, request, self._heartbeat, recover, claim.begun
            )
            # Learn while the prefill runs: learning how a chain writes must not delay the first token.
            learning = prepared.learn and self._learners.submit(prepared.learn)
            async with aclosing(generated) as deltas:
                async for delta in deltas:
                    if not lost_tokens:  # else this attempt's prompt has part of the answer
                        prompt_tokens = delta.prompt_tokens or prompt_tokens
                    if delta.is_start:
                        yield START
                        continue
                    if reader is not None:
                        delta = reader.read(delta)
                    if first_token_s is None:
                        first_token_s = now()
                        claim.first_token(delta.cached or cached, prompt_tokens)
                    if delta.finish_reason:
                        borrowed = sum(delta.reuse.borrowed_by_tier.values()) if delta.reuse else 0
                        cached = (delta.cached or cached).within(prompt_tokens - borrowed)
                    output_tokens += len(delta.token_ids)
                    usage = None
                    if delta.finish_reason:
                        if learning:  # before the chain's next question
                            await self._end_learning(learning)
                        usage = Usage(
                            prompt_tokens=prompt_tokens,
                            output_tokens=output_tokens,
                            cached=cached,
                            ttft_s=first_token_s - prepared.question_s,
                            total_s=now() - prepared.question_s,
                            retrieval_s=prepared.called_s - prepared.question_s,
                            document_ids=prepared.document_ids,
                            repeated_ids=prepared.repeated_ids,
                            has_account=delta.cached is not None,
                            reasoning_tokens=delta.reasoning_tokens,
                            speculation=claim.report(),
                            **_describe_reuse(delta, is_resumed=lost_tokens > 0),
                        )
                        if not request.makes_donors:
                            self.log.add(request, usage, delta.sources)
                    if delta.text or delta.token_ids or usage:
                        yield Piece(
                            delta.text,
                            delta.token_ids,
                            delta.finish_reason,
                            usage,
                            delta.logprobs,
                            delta.reasoning,
                        )

    async def _end_learning(self, learning: Future[None]) -> None:
        """Wait until a prompt was learned from, but not for ever: no answer depends on it."""
        if self._learners_hang and learning.cancel():
            return
        ended = asyncio.wrap_future(learning)
        await asyncio.wait({ended}, timeout=LEARN_S)
        # Then templates that never return have the threads, and later answers need not wait as well.
        self._learners_hang = not ended.done() and (learning.cancel() or self._learners_hang)
        ended.cancel()

    async def _restart_backend(self, restarts: int, death: EngineDied) -> None:
        """Bring a dead backend back up, once for all requests that its death hit.

        restarts: how often the backend had been restarted when the request's first attempt began.
        """
        self._require_not_closing()
        if self._given_up is not None:
            raise EngineDied(self._given_up)
        self._begin_restart(restarts, death)
        if self._restart is not None:
            # Shielded: a request that is cancelled must not take the others' restart with it.
            await asyncio.shield(self._restart)

    def _begin_restart(self, restarts: int, death: EngineDied) -> None:
        """Start a task that restarts the backend, unless that is under way, done or hopeless."""
        if self._is_closing or self._given_up is not None or self._restarts > restarts:
            return
        if self._restart is None:
            self._is_up.clear()
            self._restart = asyncio.get_running_loop().create_task(self._run_restart(death))
            self._restart.add_done_callback(self._end_restart)

    async def _run_restart(self, death: EngineDied) -> None:
        logger.warning("%s; starting it once more", death)
        await self._pipeline.end_unclaimed(SpeculationOutcome.FAILED)
        await self._start_again()
        self._restarts += 1
        self.stats = replace(self.stats, restarts=self._restarts)
        logger.warning("the model runs again, after %d restarts in all", self._restarts)
        self._heartbeat.beat()  # waiting requests must not time out because a start was silent

    def _end_restart(self, restart: asyncio.Task[None]) -> None:
        self._restart = None
        self._is_up.set()
        if not restart.cancelled() and (error := restart.exception()):
            logger.error("%s", error)

    async def _start_again(self) -> None:
        """Close the backend and start it. Raises EngineDied if no attempt succeeds."""
        for wait_s in RESTART_WAITS_S:
            await asyncio.sleep(wait_s)
            await self._backend.close()
            try:
                await self._backend.start()
                return
            except Exception as error:  # whatever keeps a model from starting
                failure = error
                logger.warning("the model did not start: %s", error)
        self._given_up = (
            f"the model's process died, and {len(RESTART_WAITS_S)} attempts to start it again failed, "
            f"the last one so: {failure}; mend the cause and make a new RAGCacheEngine"
        )
        raise EngineDied(self._given_up) from failure

    @property
    def is_up(self) -> bool:
        """Whether the backend is not being restarted. Any thread."""
        return self._is_up.is_set()

    async def until_up(self) -> None:
        """Wait while the backend is being restarted."""
        if self._restart is not None:
            await asyncio.wait({self._restart})

    def wait_until_up(self) -> None:
        """Block while the backend is being restarted. Any thread but the loop's may call this."""
        self._is_up.wait()

    def _require_not_closing(self) -> None:
        if self._is_closing:
            raise EngineClosed("the engine was closed while this request ran; make a new one")

    def _count_end(
        self, usage: Usage | None = None, *, failed: int = 0, cancelled: int = 0
    ) -> None:
        stats = replace(
            self.stats,
            running=self.stats.running - 1,
            failed=self.stats.failed + failed,
            cancelled=self.stats.cancelled + cancelled,
        )
        if usage:
            stats = replace(
                stats,
                finished=stats.finished + 1,
                prompt_tokens=stats.prompt_tokens + usage.prompt_tokens,
                output_tokens=stats.output_tokens + usage.output_tokens,
                cached=stats.cached + usage.cached,
                unaccounted_tokens=stats.unaccounted_tokens
                + (0 if usage.has_account else usage.prompt_tokens),
                borrowed=stats.borrowed + usage.borrowed,
                approximate=stats.approximate + (not usage.is_exact),
            )
        self.stats = stats


def _describe_reuse(delta: Delta, *, is_resumed: bool) -> dict[str, Any]:
    """Return the fields of Usage that tell what a prompt borrowed.

    is_resumed: whether an attempt before the last one has given tokens of the answer. What that borrowed
      died with it.
    """
    reuse = delta.reuse
    if reuse is None and is_resumed and delta.why_exact in TRANSIENT_REASONS:
        return {"has_lost_attempt": True}
    if reuse is None:
        return {"why_exact": delta.why_exact}
    return {
        "borrowed": CachedTokens(**reuse.borrowed_by_tier),
        "recomputed_tokens": reuse.recomputed_tokens,
        "reused": tuple(reuse.documents),
    }


@contextmanager
def _not_counting(limit: asyncio.Timeout) -> Iterator[None]:
    """Let a request's time stand still, as while the model starts again."""
    if limit.expired():
        yield
        return
    now, ends_s = asyncio.get_running_loop().time, limit.when()
    left_s = None if ends_s is None else ends_s - now()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(None if left_s is None else now() + left_s)
