"""Dynamic speculative pipelining: begin an answer before its prompt comes, and adopt it if it fits.

Work starts on the documents of a stage while the search still runs, and on the final ones when it ends.
If only a part of the prompt can be foreseen, that part is prefilled.
A prompt adopts a speculation only if its tokens and its sampling options are the same. So a wrong guess
costs time and never changes an answer. Work that no prompt claims ends after a while; the blocks that it
prefilled stay cached. Source: RAGCache, §5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import count

from ragcache_engine.anywhere.neighbours import ContextsOf, without_contexts
from ragcache_engine.prompt import Render, TemplateBook
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.speculation.candidates import CandidatePreparation
from ragcache_engine.speculation.chain_estimators import ChainEstimators
from ragcache_engine.speculation.claim import Claim
from ragcache_engine.speculation.decide import Decision, decide, share_replaced
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.outcomes import find_outcome, share_in_vain
from ragcache_engine.speculation.prefill_load import PrefillLoad
from ragcache_engine.speculation.request_planner import RequestPlanner
from ragcache_engine.speculation.runner import SpeculationRunner
from ragcache_engine.speculation.search_registry import SearchRegistry
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import (
    Document,
    ModelLimits,
    SamplingOptions,
    SpeculationOutcome,
    SpeculationStats,
    SpeculationStep,
    TokenizedPrompt,
)

UNCLAIMED_S = 10.0
MOST_UNCLAIMED = 8


class Pipeline:
    """Own all speculations of an engine: follow the stages of searches, start work, settle with prompts.

    Who owns what:
      SearchRegistry     which searches and speculations a prompt may still claim
      RequestPlanner     what the expected prompt is
      SpeculationRunner  the running speculations, how each ended, the statistics
      PrefillLoad        which prefills run now, and how fast the model is
      ChainEstimators    for which chains speculating gains time
      CandidatePreparation  the documents that may come into the prompt
      Pipeline           the order of events, the model's limits, and the timer for unclaimed work

    Call its methods on the engine's loop, except for those that say "any thread".
    is_automatic: whether to speculate only where measurements show that it gains time.
    next_request_id: names requests to the backend.
    sign_of_life: called at each token that a speculation generates.
    may_borrow: whether the backend borrows documents' tensors, so that it matters what is a document.
    is_borrowing: returns whether it does so now.
    unclaimed_s: how long after the end of its search a speculation waits for its prompt, in seconds on
      the backend's clock.
    most_unclaimed: start no speculation while this many wait for their prompt.
    """

    def __init__(
        self,
        backend: Backend,
        templates: TemplateBook,
        *,
        is_automatic: bool,
        next_request_id: Callable[[], str],
        sign_of_life: Callable[[], None],
        contexts_of: ContextsOf = without_contexts,
        dedupe: bool = False,
        may_borrow: bool = False,
        is_borrowing: Callable[[], bool] = lambda: False,
        unclaimed_s: float = UNCLAIMED_S,
        most_unclaimed: int = MOST_UNCLAIMED,
    ) -> None:
        self._backend = backend
        self._is_automatic = is_automatic
        self._unclaimed_s = unclaimed_s
        self._limits = ModelLimits(context_tokens=0, block_tokens=1, device_blocks=0)
        self._numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._load = PrefillLoad()
        self._registry = SearchRegistry(most_unclaimed)
        self._planner = RequestPlanner(backend, templates, next_request_id, contexts_of, dedupe)
        self._estimators = ChainEstimators(is_automatic=is_automatic)
        self._runner = SpeculationRunner(
            backend,
            self._planner,
            self._registry,
            self._load,
            sign_of_life,
            # A server may borrow, whatever its client knows of it.
            may_borrow=may_borrow or backend.reads_text,
        )
        self._preparation = CandidatePreparation(
            backend,
            self._planner,
            self._load,
            is_automatic=is_automatic,
            is_borrowing=is_borrowing,
        )

    def use_limits(self, limits: ModelLimits) -> None:
        """Set the limits of the started model. Nothing is speculated on before this call."""
        self._limits = limits
        self._planner.context_tokens = limits.context_tokens
        self._preparation.device_tokens = limits.device_tokens

    @property
    def stats(self) -> SpeculationStats:
        """What became of all speculations so far."""
        return self._runner.stats

    @property
    def unclaimed(self) -> int:
        """How many speculations wait for their prompt."""
        return self._registry.unclaimed

    @property
    def prefilling(self) -> int:
        """How many requests have no first token yet, speculative or not."""
        return len(self._load)

    def tokenize(self, prompt: str, add_special_tokens: bool) -> TokenizedPrompt:
        """Return the prompt's tokens: a speculation's if it has made them already. Any thread."""
        known = self._registry.find_tokens(prompt, add_special_tokens)
        return known or self._backend.tokenize(prompt, add_special_tokens)

    def track_search(
        self,
        question: str,
        chain: Hashable,
        template: Render | None,
        options: SamplingOptions | None,
        tenant: str | None = None,
    ) -> TrackedSearch:
        """Return the record of a search that starts now. Any thread.

        The arguments are those of RAGCacheEngine.retrieval.
        """
        started_s = self._backend.now()
        return TrackedSearch(
            next(self._numbers), question, chain, template, options, tenant, started_s
        )

    def stage(self, search: TrackedSearch, documents: Sequence[Document], final: bool) -> None:
        """Take in the documents that the search has found by now, nearest first.

        final: whether the search is over. Stages of a search that is over or closed are ignored.
        """
        is_over = search.is_closed or (search.ended_s is not None and not final)
        if self._is_closed or is_over:
            return
        now_s = self._backend.now()
        self._end_overdue(now_s)
        pending = self._count_pending_prefills(search, now_s)
        search.note_stage(now_s, documents, final, is_idle=not pending)
        self._registry.add_search(search)
        if final:
            self._start_timer()
        running = search.speculation
        decision = decide(
            running.documents if running else None,
            documents,
            pending_prefills=pending,
            max_prefill_requests=self._load.max_requests(self._limits),
            # Under load in "auto" mode, even a certain prompt waits for its turn in the queue.
            final=final and not self._is_automatic,
        )
        if decision is Decision.KEEP:
            return
        if running:
            outcome = SpeculationOutcome.OTHER_DOCUMENTS
            wrong = share_replaced(running.documents, documents)
            self._runner.cancel(running, search, outcome, wrong)
        if decision is Decision.START and self._may_start(search, final):
            self._preparation.interrupt()
            self._runner.start(search, documents, is_final=final)
        elif final:
            # What comes between may choose from them: a reranker, or a limit of the chain's own.
            self._prepare(search, documents)

    def candidates(
        self,
        search: TrackedSearch,
        documents: Sequence[Document],
        corpus: Hashable | None = None,
        learn_neighbours: Callable[[Sequence[Document]], None] | None = None,
    ) -> None:
        """Take in documents of which some will be in the search's prompt, likeliest first.

        corpus, learn_neighbours: as in TrackedSearch. Those of a search that is over are ignored.
        """
        if self._is_closed or search.is_closed or search.ended_s is not None or not documents:
            return
        if learn_neighbours is not None:
            search.corpus, search.learn_neighbours = corpus, learn_neighbours
        self._prepare(search, documents)

    def _prepare(self, search: TrackedSearch, documents: Sequence[Document]) -> None:
        now_s = self._backend.now()
        self._end_overdue(now_s)
        search.note_candidates(now_s, documents)
        self._registry.add_search(search)
        if not self._count_pending_prefills(search, now_s):
            self._preparation.begin(search, self._estimators.candidates_of(search.chain))

    def _count_pending_prefills(self, search: TrackedSearch, now_s: float) -> int:
        """Count the running prefills besides the search's own; in "auto" mode also those expected soon.

        The other searches that run now will soon send their prompts, and then the model is not idle.
        """
        pending = self._load.count_others(search.speculation)
        if not self._is_automatic:
            return pending
        return pending + self._registry.count_expected_prompts(
            search, now_s, self._estimators.search_s, self._load.speed.prefill_s or 0.0
        )

    def _may_start(self, search: TrackedSearch, is_final: bool) -> bool:
        if self._registry.is_full or not self._planner.may_plan(search):
            return False
        step_tokens = None if is_final else self._limits.step_tokens
        return self._estimators.is_worth_guessing(
            search, self._load.speed, step_tokens, is_early=not is_final
        )

    def abandon(self, search: TrackedSearch) -> None:
        """Close a search that ended without documents: no prompt will come from it."""
        search.is_closed = True  # which ends the preparation of its candidates, too
        self._registry.remove_search(search.number)
        if search.speculation:
            outcome = SpeculationOutcome.OTHER_DOCUMENTS
            self._runner.cancel(search.speculation, search, outcome)

    def claim(self, request: BackendRequest, number: int | None) -> Claim:
        """Give a request the work that was done for it before it came, and settle its search.

        number: the search that the request's prompt was made from; None if that is not known.
        """
        now_s = self._backend.now()
        self._preparation.interrupt()
        self._end_overdue(now_s)
        search, adopted = self._registry.claim(request, number)
        if search:
            self._settle(search, request, adopted, now_s)
        return Claim(self._backend.now, self._load, request, search, adopted)

    def _settle(
        self,
        search: TrackedSearch,
        request: BackendRequest,
        adopted: Speculation | None,
        now_s: float,
    ) -> None:
        """Close the search, end the speculation that was in vain, and remember the outcome."""
        search.is_closed = True
        search.note(now_s, SpeculationStep.PROMPT)
        if search.speculation:
            guess, outcome = search.speculation.request, find_outcome(search.speculation, request)
            wrong = 1.0 if guess is None else share_in_vain(guess.prompt.text, request.prompt.text)
            self._runner.cancel(search.speculation, search, outcome, wrong)
        if adopted:
            self._runner.adopt(adopted, search, now_s)
        self._estimators.note_prompt(search, now_s, request.options, request.document_ids)
        self._estimators.note_outcome(search)

    def _end_overdue(self, now_s: float) -> None:
        """End the speculations whose prompt did not come in time."""
        for speculation, search in self._registry.find_overdue(now_s, self._unclaimed_s):
            self._runner.cancel(speculation, search, SpeculationOutcome.EXPIRED)
            search.is_closed = True
            self._estimators.note_outcome(search)

    def _start_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._unclaimed_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._end_overdue(self._backend.now())
        if self._registry.unclaimed:
            self._start_timer()

    async def end_unclaimed(
        self, outcome: SpeculationOutcome, document_ids: Collection[str] | None = None
    ) -> None:
        """End the speculations that wait for a prompt, as before the cache is cleared.

        document_ids: end only those on one of these documents; None: end all.
        Return when the backend has stopped them.
        """
        waiting = self._registry.find_about(document_ids)
        for speculation, search in waiting:
            self._runner.cancel(speculation, search, outcome)
        if document_ids is not None:
            self._registry.forget(document_ids)
        tasks = [speculation.task for speculation, _ in waiting if speculation.task]
        if preparing := self._preparation.interrupt():
            tasks.append(preparing)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End every speculation, adopted or not, and start no more."""
        self._is_closed = True
        if self._timer:
            self._timer.cancel()
        await self._preparation.close()
        await self._runner.close()
