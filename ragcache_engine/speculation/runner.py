"""Run speculative generations: start one, collect its deltas, and end it as adopted or cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import RAGCacheError
from ragcache_engine.protocols import Backend, Delta
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.outcomes import count_outcome
from ragcache_engine.speculation.prefill_load import PrefillLoad
from ragcache_engine.speculation.request_planner import RequestPlanner
from ragcache_engine.speculation.search_registry import SearchRegistry
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import (
    Document,
    SpeculationOutcome,
    SpeculationStats,
    SpeculationStep,
)

logger = logging.getLogger(__name__)

PLANNED_AT_ONCE = 4
"""How many expected prompts are written at a time. The template of one may be the caller's function."""


class SpeculationRunner:
    """Own the tasks that speculations run in, and the statistics. On the engine's loop only.

    sign_of_life: called at each token that a speculation generates. may_borrow: as in Speculation.
    stats: what became of all speculations.
    """

    def __init__(
        self,
        backend: Backend,
        planner: RequestPlanner,
        registry: SearchRegistry,
        load: PrefillLoad,
        sign_of_life: Callable[[], None],
        *,
        may_borrow: bool = False,
    ) -> None:
        self._may_borrow = may_borrow
        self._backend = backend
        self._planner = planner
        self._registry = registry
        self._load = load
        self._sign_of_life = sign_of_life
        self._planners = DaemonThreads(PLANNED_AT_ONCE, "ragcache-planning")
        self._tasks: set[asyncio.Task[None]] = set()
        self.stats = SpeculationStats()

    def start(
        self, search: TrackedSearch, documents: Sequence[Document], *, is_final: bool
    ) -> None:
        """Start to generate the answer to the prompt that these documents will be in.

        documents: nearest first. is_final: whether the search is over, so that they will not change.
        """
        speculation = Speculation(
            documents,
            self._backend.now(),
            is_final=is_final,
            may_borrow=self._may_borrow,
        )
        speculation.was_alone = self._load.begin(speculation)
        self._registry.add(speculation, search)
        speculation.task = asyncio.create_task(self._run(speculation, search))
        self._tasks.add(speculation.task)
        speculation.task.add_done_callback(self._tasks.discard)

    def adopt(self, speculation: Speculation, search: TrackedSearch, now_s: float) -> None:
        """Note that a request adopts this speculation, which the registry has given out."""
        search.outcome = SpeculationOutcome.ADOPTED
        if speculation.request:
            self._backend.adopted(speculation.request.request_id)
        search.note(now_s, SpeculationStep.ADOPTED)
        self.stats = count_outcome(self.stats, SpeculationOutcome.ADOPTED)

    def cancel(
        self,
        speculation: Speculation,
        search: TrackedSearch,
        outcome: SpeculationOutcome,
        wrong: float = 1.0,
    ) -> None:
        """End a speculation that no request adopts. outcome: the reason.

        wrong: the share of its documents that are of no use; the tensors of the others stay.
        """
        self._registry.remove(speculation, search)
        self._load.end(speculation)
        speculation.cancel()
        if not speculation.is_under_way:
            return
        now_s = self._backend.now()
        search.outcome = outcome
        computed = speculation.count_computed_tokens(now_s, self._load.speed.token_s)
        self.stats = count_outcome(self.stats, outcome, round(wrong * computed))
        if outcome is not SpeculationOutcome.PREFILLED:
            search.speculations_cancelled += wrong
            search.latest_wrong = wrong
            search.note(now_s, SpeculationStep.CANCELLED, outcome.value)

    async def close(self) -> None:
        """End every speculation, adopted or not."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, speculation: Speculation, search: TrackedSearch) -> None:
        error: Exception | None = None
        try:
            # In a thread: planning takes milliseconds, which belong to the running requests.
            request = await self._planners.run(partial(self._planner.plan, speculation, search))
            if request is None:
                self._registry.remove(speculation, search)
                return
            self._note_started(speculation, search, request.expected_tokens)
            async with aclosing(self._backend.generate(request)) as deltas:
                async for delta in deltas:
                    self._receive(speculation, delta)
        except Exception as failure:  # nobody has asked for this answer, so nobody gets the error
            error = failure
            level = logging.DEBUG if isinstance(failure, RAGCacheError) else logging.WARNING
            logger.log(level, "a speculation failed: %r", failure)
        finally:
            speculation.end(error)
            self._load.end(speculation)
        if error and speculation in self._registry:
            self.cancel(speculation, search, SpeculationOutcome.FAILED)

    def _note_started(self, speculation: Speculation, search: TrackedSearch, tokens: int) -> None:
        now_s = self._backend.now()
        search.preparing_s = now_s - speculation.started_s
        speculation.is_under_way, speculation.started_s = True, now_s
        search.speculations_started += 1
        self.stats = replace(self.stats, started=self.stats.started + 1)
        part = "the whole prompt" if speculation.is_whole else "up to the documents"
        search.note(speculation.started_s, SpeculationStep.STARTED, f"{part}, {tokens} tokens")

    def _receive(self, speculation: Speculation, delta: Delta) -> None:
        self._sign_of_life()
        now_s = self._backend.now()
        is_first = speculation.first_token_s is None and not delta.is_start
        speculation.add(delta, now_s)
        if is_first:
            self._load.end(speculation)
            if speculation.was_alone:
                computed = speculation.count_computed_tokens(now_s, 0.0)
                self._load.note_speed(now_s - speculation.started_s, computed)
