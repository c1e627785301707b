"""Prepares the documents that a search has found, while something still chooses among them.

Many chains retrieve twenty documents, and a reranker keeps five. Between the two the model idles. What
can be computed for a document whatever else stands in the prompt is computed in that time: with
reuse="anywhere" the donors of the candidates, best first, in short pieces; with exact reuse the prompt's
beginning, as far as this chain's prompts have begun with the first candidates.

A piece that still runs when the prompt comes delays it. So no piece is begun unless the chain's earlier
questions left time for it, as fast as the model computes and the tiers load, and all pieces end when any
prompt comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.speculation.estimate import CandidateFigures
from ragcache_engine.speculation.prefill_load import PrefillLoad, running_mean
from ragcache_engine.speculation.request_planner import RequestPlanner
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import Document

logger = logging.getLogger(__name__)

FIRST_PIECE, LARGEST_PIECE = 1, 16
"""How many candidates are prepared at once: the first time, and at most."""

QUICK_S = 0.05
"""After a piece that took less, the next one has twice as many candidates."""

LEAST_LEAD_S = 0.02
"""With less time between candidates and prompt, nothing is prepared."""

LEAST_GAIN_S = 0.02
"""What is loaded in less time is left to the prompt, which a piece may delay by as much."""

TRIED_AGAIN = 16
"""After so many pieces that were left to the prompt, one is loaded again, to see how long it takes."""

FORGETTING = 0.9
"""By this what was learned of slow pieces shrinks with each piece for which there was no time."""

LARGEST_SHARE = 0.5
"""The share of the device's blocks that the candidates of one search may take."""


@dataclass(slots=True)
class Pace:
    """How long pieces take for each of their tokens, in seconds. None: none was measured yet."""

    token_s: float | None = None

    def note_end(self, tokens: int, seconds: float) -> None:
        """Note that a piece of so many tokens took so long."""
        self.token_s = running_mean(self.token_s, seconds / tokens)

    def note_cut(self, tokens: int, seconds: float) -> None:
        """Note that a piece was not done after so long. It is taken to have been half done."""
        self.token_s = max(self.token_s or 0.0, 2 * seconds / tokens)

    def forget_some(self) -> None:
        """Forget some of it, or one slow piece would end all preparing for good."""
        if self.token_s is not None:
            self.token_s *= FORGETTING


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
        self._computing, self._loading = Pace(), Pace()
        self._left_to_prompts = 0
        self.device_tokens = 0

    def begin(self, search: TrackedSearch, figures: CandidateFigures) -> None:
        """Begin with the search's candidates, unless the model has something else to do."""
        is_possible = self.device_tokens and self._planner.may_plan(search, are_chosen=True)
        if self._task is not None or not is_possible:
            return
        if self._may_go_on(search, figures):
            self._task = asyncio.create_task(self._run(search, figures))
            self._task.add_done_callback(self._note_end)

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

    def _may_go_on(
        self, search: TrackedSearch, figures: CandidateFigures, piece_s: float = 0.0
    ) -> bool:
        """Return whether the model is idle, and will probably be when the prompt comes.

        piece_s: how long the next piece is expected to take.
        """
        if search.is_closed or search.candidates_s is None or len(self._load):
            return False
        if not self._is_automatic:
            return True
        left_s = search.candidates_s + figures.lead_s - self._backend.now()
        return left_s > max(LEAST_LEAD_S, piece_s)

    async def _run(self, search: TrackedSearch, figures: CandidateFigures) -> None:
        prepared: set[str] = set()
        size, room = FIRST_PIECE, self.device_tokens * LARGEST_SHARE
        try:
            while self._may_go_on(search, figures):
                piece = self._next_piece(search, figures, prepared, size)
                if not piece:
                    return
                prepared.update(one.id for one in piece)
                request = await self._planners.run(partial(self._plan, search, piece))
                if request is None:
                    return
                tokens = request.expected_tokens + sum(
                    len(context.token_ids) for context in request.contexts.values()
                )
                room -= tokens
                if room < 0:
                    return
                [is_held] = await self._backend.touch_if_cached([request])
                pace = self._loading if is_held else self._computing
                token_s = pace.token_s or 0.0
                if not is_held:
                    token_s = max(token_s, self._load.speed.token_s)
                if is_held and self._is_quickly_loaded(tokens):
                    return
                if not self._may_go_on(search, figures, tokens * token_s):
                    pace.forget_some()
                    return
                took_s = await self._compute(request, tokens, pace)
                # What is in memory already takes next to nothing, so that more of it goes at once.
                size = min(LARGEST_PIECE, 2 * size) if took_s < QUICK_S else FIRST_PIECE
        except Exception as error:  # no answer depends on it
            logger.debug("candidates could not be prepared: %r", error)

    def _is_quickly_loaded(self, tokens: int) -> bool:
        """Return whether the prompt itself would load these tokens in next to no time."""
        token_s = self._loading.token_s
        if not self._is_automatic or token_s is None or tokens * token_s > LEAST_GAIN_S:
            return False
        self._left_to_prompts = (self._left_to_prompts + 1) % TRIED_AGAIN
        return self._left_to_prompts > 0

    async def _compute(self, request: BackendRequest, tokens: int, pace: Pace) -> float:
        """Run a piece of so many tokens, and note its pace. Return how many seconds it took."""
        began_s = self._backend.now()
        try:
            async with aclosing(self._backend.generate(request)) as deltas:
                async for _ in deltas:
                    pass
        except asyncio.CancelledError:
            pace.note_cut(tokens, self._backend.now() - began_s)
            raise
        took_s = self._backend.now() - began_s
        pace.note_end(tokens, took_s)
        return took_s

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
