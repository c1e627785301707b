"""Prepares the documents that a search has found, while something still chooses among them.

Many chains retrieve twenty documents, and a reranker keeps five. Between the two the model idles. What
can be computed for a document whatever else stands in the prompt is computed in that time: with
reuse="anywhere" the donors of the candidates, best first, in short pieces; with exact reuse the prompt's
beginning, as far as this chain's prompts have begun with the first candidates.

A piece that still runs when the prompt comes delays it. So no piece is begun unless the chain's earlier
questions left time for one, and all pieces end when any prompt comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.speculation.estimate import CandidateFigures
from ragcache_engine.speculation.prefill_load import PrefillLoad, running_mean
from ragcache_engine.speculation.request_planner import RequestPlanner
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import Document

logger = logging.getLogger(__name__)

FIRST_PIECE, LARGEST_PIECE = 2, 16
"""How many candidates are prepared at once: the first time, and at most."""

LEAST_LEAD_S = 0.02
"""With less time between candidates and prompt, nothing is prepared."""

FORGETTING = 0.9
"""By this the time of a piece shrinks with each search that has no time for one."""

LARGEST_SHARE = 0.5
"""The share of the device's blocks that the candidates of one search may take."""


class CandidatePreparation:
    """Prepares the candidates of one search at a time. On the engine's loop only.

    is_automatic: whether to prepare only in the time that the chain's earlier questions had left.
    is_borrowing: returns whether the backend borrows documents from any position now.
    device_tokens: how many tokens the device has room for; 0 if that is not known, and then nothing is
      prepared.
    """

    def __init__(
        self,
        backend: Backend,
        planner: RequestPlanner,
        load: PrefillLoad,
        *,
        is_automatic: bool,
        is_borrowing: Callable[[], bool],
    ) -> None:
        self._backend = backend
        self._planner = planner
        self._load = load
        self._is_automatic = is_automatic
        self._is_borrowing = is_borrowing
        self._planners = DaemonThreads(1, "ragcache-candidates")
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._piece_s: float | None = None
        self.device_tokens = 0

    def begin(self, search: TrackedSearch, figures: CandidateFigures) -> None:
        """Begin with the search's candidates, unless the model has something else to do."""
        is_possible = self.device_tokens and self._planner.may_plan(search, are_chosen=True)
        if self._task is not None or not is_possible:
            return
        if self._may_go_on(search, figures):
            self._task = asyncio.create_task(self._run(search, figures))
            self._task.add_done_callback(self._note_end)
        elif self._piece_s is not None:
            self._piece_s *= FORGETTING  # or one slow piece would end all preparing for good

    def interrupt(self) -> asyncio.Task[None] | None:
        """End what is being prepared, as a prompt has come. Return the task that ends."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return task

    async def close(self) -> None:
        """End all that is being prepared."""
        self.interrupt()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None

    def _may_go_on(self, search: TrackedSearch, figures: CandidateFigures) -> bool:
        """Return whether the model is idle, and a piece will probably be done before the prompt comes."""
        if search.is_closed or search.candidates_s is None or len(self._load):
            return False
        if not self._is_automatic:
            return True
        left_s = search.candidates_s + figures.lead_s - self._backend.now()
        return left_s > max(LEAST_LEAD_S, self._piece_s or 0.0)

    async def _run(self, search: TrackedSearch, figures: CandidateFigures) -> None:
        prepared: set[str] = set()
        size, room = FIRST_PIECE, self.device_tokens * LARGEST_SHARE
        try:
            while self._may_go_on(search, figures):
                piece = self._next_piece(search, figures, prepared, size)
                if not piece:
                    return
                prepared.update(one.id for one in piece)
                began_s = self._backend.now()
                request = await self._planners.run(partial(self._plan, search, piece))
                # Neighbours are looked up before it, which may have taken long.
                if request is None or not self._may_go_on(search, figures):
                    return
                room -= request.expected_tokens + sum(
                    len(context.token_ids) for context in request.contexts.values()
                )
                if room < 0:
                    return
                async with aclosing(self._backend.generate(request)) as deltas:
                    async for _ in deltas:
                        pass
                took_s = self._backend.now() - began_s
                was_quick = self._piece_s is not None and took_s < self._piece_s / 2
                self._piece_s = running_mean(self._piece_s, took_s)
                # What is cached already takes next to nothing, so that more of it goes at once.
                size = min(LARGEST_PIECE, 2 * size) if was_quick else FIRST_PIECE
        except Exception as error:  # no answer depends on it
            logger.debug("candidates could not be prepared: %r", error)

    def _plan(self, search: TrackedSearch, piece: list[Document]) -> BackendRequest | None:
        is_borrowing = self._is_borrowing()
        if is_borrowing and search.learn_neighbours:
            search.learn_neighbours(piece)
        return self._planner.plan_beginning(search, piece, makes_donors=is_borrowing)

    def _next_piece(
        self,
        search: TrackedSearch,
        figures: CandidateFigures,
        prepared: set[str],
        size: int,
    ) -> list[Document]:
        """Return the candidates to prepare next, in the order of a prompt; none at the end."""
        candidates = search.candidates
        if not self._is_borrowing():
            sure = candidates[: figures.sure_documents]
            return [] if prepared else list(sure)
        left = [one for one in candidates[1:] if one.id not in prepared][:size]
        # The first document of a prompt is exact, and lends nothing: it is the same one in every piece.
        return [candidates[0], *left] if left else []
