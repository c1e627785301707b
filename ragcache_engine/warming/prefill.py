"""Prefills what warming has planned, some at a time; `warming` knows what to prefill."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ragcache_engine.errors import (
    EmptyPrompt,
    EngineDied,
    GenerationFailed,
    InvalidArgument,
    PromptTooLong,
)
from ragcache_engine.requests.intake import PromptIntake
from ragcache_engine.requests.runner import PreparedRequest
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.requests.streams import AnswerStream, join_pieces, read_async
from ragcache_engine.values import ONE_TOKEN, Answer
from ragcache_engine.warming.plan import LeftOut, Prefill, Warmed, leave_out

WARM_AT_ONCE = 4
"""How many prompts to prefill at a time: enough to fill the model's steps, few beside real questions."""

LOOKED_UP_AT_ONCE = 16
"""How many prompts to look up in the tiers at a time. Between two steps of the model, each takes some
2 ms."""


OF_ONE_SET = (EmptyPrompt, PromptTooLong, InvalidArgument, GenerationFailed)
"""Errors after which all other sets can still be prefilled."""


class Prefiller:
    """Makes and runs the requests that prefill documents. Any thread may call its methods.

    planned: the ForgetLog's moment when the prefills were planned.
    recompute_ratio: of borrowed documents; None if nothing is borrowed. only_missing: whether to look up
      what is held already, instead of loading it.
    """

    def __init__(
        self,
        runtime: Runtime,
        intake: PromptIntake,
        *,
        planned: int,
        tenant: str | None,
        recompute_ratio: float | None,
        only_missing: bool,
    ) -> None:
        self._runtime = runtime
        self._intake = intake
        self._planned = planned
        self._tenant = tenant
        self._recompute_ratio = recompute_ratio
        self._only_missing = only_missing

    def prepare(self, prefill: Prefill) -> PreparedRequest:
        """Return the request that prefills this. Raises what PromptIntake.prepare does."""
        prompt, documents = prefill
        prepared = self._intake.prepare(
            prompt,
            documents,
            ONE_TOKEN,
            self._tenant,
            False,
            self._recompute_ratio,
            self._planned,
            is_chains=False,
        )
        return replace(prepared, request=replace(prepared.request, makes_donors=True))

    def prepare_all(
        self, prefills: Sequence[Prefill]
    ) -> tuple[list[tuple[Prefill, PreparedRequest]], list[tuple[Prefill, Exception]]]:
        """Return the requests that prefill these, and those that cannot be prefilled, with why."""
        prepared = []
        left_out: list[tuple[Prefill, Exception]] = []
        for one in prefills:
            try:
                prepared.append((one, self.prepare(one)))
            except OF_ONE_SET as error:
                left_out.append((one, error))
        return prepared, left_out

    def touch_if_cached(self, requests: Sequence[PreparedRequest]) -> list[bool]:
        """Return which requests need not run, as some tier holds all that they would compute.

        Raises RequestTimedOut or EngineClosed.
        """
        if not self._only_missing:
            return [False] * len(requests)
        try:
            return self._runtime.touch_if_cached([one.request for one in requests]).result()
        except EngineDied:
            return [False] * len(requests)  # running them restarts the model

    async def atouch_if_cached(self, requests: Sequence[PreparedRequest]) -> list[bool]:
        """Return what `touch_if_cached` does."""
        if not self._only_missing:
            return [False] * len(requests)
        try:
            return await asyncio.wrap_future(
                self._runtime.touch_if_cached([one.request for one in requests])
            )
        except EngineDied:
            return [False] * len(requests)

    def run(self, request: PreparedRequest) -> Answer:
        """Run a request and wait for it."""
        with AnswerStream(
            partial(self._runtime.start_request, self._begin(request)),
            self._runtime.require_this_process,
            keep_alive=self,
            has_start=self._runtime.backend.reads_text,
        ) as pieces:
            return pieces.answer()

    async def arun(self, request: PreparedRequest) -> Answer:
        """Run a request."""
        start = partial(self._runtime.start_request, self._begin(request))
        async with aclosing(read_async(start)) as pieces:
            return join_pieces([piece async for piece in pieces])

    def _begin(self, request: PreparedRequest) -> PreparedRequest:
        """Let the request's times begin now: it was prepared some requests ago."""
        now_s = self._runtime.backend.now()
        return replace(request, question_s=now_s, called_s=now_s)


def prefill_all(prefills: Sequence[Prefill], prefiller: Prefiller, *, progress: bool) -> Warmed:
    """Prefill everything, WARM_AT_ONCE at a time, but for what is held already.

    A set that cannot be prefilled is left out, and the others go on. progress: show a bar on standard
    error.
    Raises the error of the first set that was left out if no set could be prefilled.
    """
    warmed, first_error, left_out = Warmed(), None, list[LeftOut]()
    running: deque[tuple[Prefill, Future[Answer]]] = deque()
    with (
        show_progress(len(prefills), progress) as advance,
        ThreadPoolExecutor(WARM_AT_ONCE) as pool,
    ):

        def skip(prefill: Prefill, error: Exception) -> None:
            nonlocal first_error
            first_error = first_error or error
            left_out.append(leave_out(prefill, error))
            advance()

        def collect(most: int) -> None:
            nonlocal warmed
            while len(running) > most:
                prefill, answer = running.popleft()
                try:
                    warmed = warmed.after(answer.result().usage)
                    advance()
                except OF_ONE_SET as error:
                    skip(prefill, error)

        for start in range(0, len(prefills), LOOKED_UP_AT_ONCE):
            part = prefills[start : start + LOOKED_UP_AT_ONCE]
            prepared, refused = prefiller.prepare_all(part)
            for one in refused:
                skip(*one)
            held = prefiller.touch_if_cached([request for _, request in prepared])
            for (prefill, request), is_held in zip(prepared, held, strict=True):
                if is_held:
                    warmed = warmed.after_held(len(request.request.tokens))
                    advance()
                else:
                    running.append((prefill, pool.submit(prefiller.run, request)))
                    collect(WARM_AT_ONCE)  # no more are prepared than can soon run
        collect(0)
    if first_error and not warmed.sets:
        raise first_error
    return replace(warmed, left_out=tuple(left_out))


async def prefill_all_async(
    prefills: Sequence[Prefill],
    prefiller: Prefiller,
    apart: Callable[[Callable[[], Any]], Awaitable[Any]],
    *,
    progress: bool,
) -> Warmed:
    """`prefill_all` for coroutines. Cancelling it, or an error, cancels the prefills that still run.

    apart: runs a call beside the caller's loop.
    """
    warmed, first_error, waiting, left_out = Warmed(), None, iter(prefills), list[LeftOut]()
    missing: deque[tuple[Prefill, PreparedRequest]] = deque()
    looking = asyncio.Lock()
    with show_progress(len(prefills), progress) as advance:

        def skip(prefill: Prefill, error: Exception) -> None:
            nonlocal first_error
            first_error = first_error or error
            left_out.append(leave_out(prefill, error))
            advance()

        async def look_up_more() -> None:
            nonlocal warmed
            while not missing and (part := list(islice(waiting, LOOKED_UP_AT_ONCE))):
                prepared = []
                for one in part:  # each by itself, as each may take the time that a request has
                    ready, refused = await apart(partial(prefiller.prepare_all, [one]))
                    prepared += ready
                    for prefill, error in refused:
                        skip(prefill, error)
                held = await prefiller.atouch_if_cached([request for _, request in prepared])
                for one, is_held in zip(prepared, held, strict=True):
                    if is_held:
                        warmed = warmed.after_held(len(one[1].request.tokens))
                        advance()
                    else:
                        missing.append(one)

        async def work() -> None:
            nonlocal warmed
            while True:
                async with looking:
                    await look_up_more()
                    if not missing:
                        return
                    prefill, request = missing.popleft()
                try:
                    answer = await prefiller.arun(request)
                except OF_ONE_SET as error:
                    skip(prefill, error)
                    continue
                warmed = warmed.after(answer.usage)
                advance()

        await run_workers(work)
    if first_error and not warmed.sets:
        raise first_error
    return replace(warmed, left_out=tuple(left_out))


async def run_workers(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run WARM_AT_ONCE of these at a time. An error of one, or cancelling, ends them all."""
    workers = [asyncio.create_task(work()) for _ in range(WARM_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


@contextmanager
def show_progress(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error, if wanted. Yields a function that advances it by one."""
    if not wanted:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("Prefilling documents"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
