"""Dynamic speculative pipelining: prefill while the search still runs, and hand over if it was right.

Stages of searches come in; `decide` says what to do; what is begun waits for its prompt. A prompt adopts
a speculation only if tokens and sampling options are exactly the same, so a wrong guess costs time and
never an answer. Work that nobody comes for ends after a while, and its prefilled blocks stay cached.
Source: RAGCache, §5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Self

from ragcache_engine.errors import RAGCacheError
from ragcache_engine.prompt import Render, TemplateBook, find_documents, token_segments
from ragcache_engine.protocols import Backend, BackendRequest, Delta
from ragcache_engine.speculation.decide import Decision, decide, max_prefill_requests
from ragcache_engine.speculation.estimate import Estimator, ModelSpeed, running_mean
from ragcache_engine.speculation.generation import Speculation, is_same_prompt
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import (
    CachedTokens,
    ChatPrompt,
    Document,
    ModelLimits,
    SamplingOptions,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStats,
    SpeculationStep,
    TokenizedPrompt,
)

logger = logging.getLogger(__name__)

UNCLAIMED_S = 10.0
MOST_UNCLAIMED = 8
SOON_S = 0.5
"""After its search, so long a prompt is waited for before it counts as one that will not come."""
MOST_SEARCHES = 256
MOST_CHAINS = 64

_OF_USE = (SpeculationOutcome.ADOPTED, SpeculationOutcome.PREFILLED)
_ONE_TOKEN = SamplingOptions(max_tokens=1)


class Pipeline:
    """All speculations of an engine. Its methods are called on the engine's loop, but for those that say
    otherwise.

    is_automatic: speculate only where it is measured to gain time.
    next_request_id: names requests to the backend. sign_of_life: called at each token.
    unclaimed_s: how long after its search a speculation waits for its prompt, on the backend's clock.
    most_unclaimed: beyond so many, nothing new is begun.
    """

    def __init__(
        self,
        backend: Backend,
        templates: TemplateBook,
        *,
        is_automatic: bool,
        next_request_id: Callable[[], str],
        sign_of_life: Callable[[], None],
        unclaimed_s: float = UNCLAIMED_S,
        most_unclaimed: int = MOST_UNCLAIMED,
    ) -> None:
        self._backend = backend
        self._templates = templates
        self._is_automatic = is_automatic
        self._next_request_id = next_request_id
        self._sign_of_life = sign_of_life
        self._unclaimed_s = unclaimed_s
        self._most_unclaimed = most_unclaimed
        self._limits = ModelLimits(context_tokens=0, block_tokens=1, device_blocks=0)
        self._numbers = count(1)
        self._searches: OrderedDict[int, TrackedSearch] = OrderedDict()
        self._unclaimed: dict[Speculation, TrackedSearch] = {}
        self._prefilling: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._estimators: OrderedDict[Hashable, Estimator] = OrderedDict()
        self._speed = ModelSpeed()
        self._prompt_tokens: float | None = None
        self.stats = SpeculationStats()

    def use_limits(self, limits: ModelLimits) -> None:
        self._limits = limits

    def search(
        self,
        question: str,
        chain: Hashable,
        template: Render | None,
        options: SamplingOptions | None,
        tenant: str | None = None,
    ) -> TrackedSearch:
        """A search that begins now. From any thread."""
        started_s = self._backend.now()
        return TrackedSearch(
            next(self._numbers), question, chain, template, options, tenant, started_s
        )

    def tokenized(self, prompt: str, add_special_tokens: bool) -> TokenizedPrompt | None:
        """The prompt's tokens, if a speculation on it has made them already. From any thread."""
        for speculation in self._unclaimed.copy():
            request = speculation.request
            if (
                request
                and request.prompt.text == prompt
                and request.options.add_special_tokens == add_special_tokens
            ):
                return request.prompt
        return None

    @property
    def unclaimed(self) -> int:
        """Speculations that wait for their prompt."""
        return len(self._unclaimed)

    @property
    def prefilling(self) -> int:
        """Requests without a first token yet, speculative or not."""
        return len(self._prefilling)

    # What the search says.

    def stage(self, search: TrackedSearch, documents: Sequence[Document], final: bool) -> None:
        """The search has these documents now, nearest first."""
        if self._is_closed or search.is_closed or (search.ended_s is not None and not final):
            return
        self._expire()
        now_s = self._backend.now()
        names = ", ".join(document.id for document in documents)
        search.note(now_s, SpeculationStep.STAGE, f"final: {names}" if final else names)
        if search.documents is None:
            self._searches[search.number] = search
            if len(self._searches) > MOST_SEARCHES:
                self._searches.popitem(last=False)
        pending = self._pending_prefills(search, now_s)
        if search.documents != documents:
            search.documents, search.documents_since_s = documents, now_s
            search.was_idle = not pending
        if final:
            search.ended_s = now_s
            self._arm()
        running = search.speculation
        decision = decide(
            running.documents if running else None,
            documents,
            pending_prefills=pending,
            max_prefill_requests=self._max_prefill_requests(),
            # Under load, even what is certain to be asked is left to the queue's own order.
            final=final and not self._is_automatic,
        )
        if decision is Decision.KEEP:
            return
        if running:
            self._cancel(running, search, SpeculationOutcome.OTHER_DOCUMENTS)
        if decision is Decision.START and self._may_start(search, final):
            self._start(search, documents, is_final=final)

    def abandon(self, search: TrackedSearch) -> None:
        """The search ended without documents: nothing will be asked."""
        search.is_closed = True
        self._searches.pop(search.number, None)
        if search.speculation:
            self._cancel(search.speculation, search, SpeculationOutcome.OTHER_DOCUMENTS)

    def _may_start(self, search: TrackedSearch, is_final: bool) -> bool:
        if len(self._unclaimed) >= self._most_unclaimed:
            return False
        if not self._templates.may_guess((search.chain, search.tenant), search.template):
            return False
        if search.is_worth_guessing is None:
            step_tokens = None if is_final else self._limits.step_tokens
            search.is_worth_guessing = not self._is_automatic or self._estimator(
                search.chain
            ).decide_next(self._speed, step_tokens)
        return search.is_worth_guessing

    def _pending_prefills(self, search: TrackedSearch, now_s: float) -> int:
        """Prefills beside the search's own that are under way, and in "auto" also those about to come.

        Other searches of the moment have their prompts soon, and no idle model is left to guess with.
        """
        pending = len(self._prefilling) - (search.speculation in self._prefilling)
        if not self._is_automatic:
            return pending
        return pending + sum(
            other is not search
            and not other.is_closed
            and other.speculation is None
            and (other.ended_s is None or now_s - other.ended_s < SOON_S)
            for other in self._searches.values()
        )

    def _max_prefill_requests(self) -> int:
        limits = self._limits
        tokens = self._prompt_tokens or limits.step_tokens
        return max_prefill_requests(limits.step_tokens, limits.device_tokens, int(tokens))

    # One speculation's life.

    def _start(
        self, search: TrackedSearch, documents: Sequence[Document], *, is_final: bool
    ) -> None:
        speculation = Speculation(
            documents, self._backend.now(), was_alone=not self._prefilling, is_final=is_final
        )
        search.speculation = speculation
        self._unclaimed[speculation] = search
        self._prefilling.add(speculation)
        speculation.task = asyncio.create_task(self._run(speculation, search))
        self._tasks.add(speculation.task)
        speculation.task.add_done_callback(self._tasks.discard)

    async def _run(self, speculation: Speculation, search: TrackedSearch) -> None:
        error: Exception | None = None
        try:
            # Writing and tokenising a prompt takes milliseconds that belong to running requests.
            if (request := await asyncio.to_thread(self._plan, speculation, search)) is None:
                self._forget(speculation, search)
                return
            self._note_start(speculation, search, len(request.prompt))
            async with aclosing(self._backend.generate(request)) as deltas:
                async for delta in deltas:
                    self._take(speculation, delta)
        except Exception as failure:  # a guess that fails is no one's error
            error = failure
            level = logging.DEBUG if isinstance(failure, RAGCacheError) else logging.WARNING
            logger.log(level, "a speculation ended: %r", failure)
        finally:
            speculation.end(error)
            self._prefilling.discard(speculation)
        if error and speculation in self._unclaimed:
            self._cancel(speculation, search, SpeculationOutcome.FAILED)

    def _plan(self, speculation: Speculation, search: TrackedSearch) -> BackendRequest | None:
        """Write the prompt that is expected. Any thread."""
        documents = speculation.documents
        # What was learned of one tenant's prompts is not told to another.
        chain = (search.chain, search.tenant)
        guess = self._templates.guess(chain, search.question, documents, search.template)
        if guess is None:
            return None
        expected = guess.options or search.options or self._templates.last_options()
        options = expected or SamplingOptions()
        if isinstance(
            guess.text, ChatPrompt
        ):  # an explicit template's; a learned one has the options
            options = replace(options, add_special_tokens=False)
        tokenized = self._backend.tokenize(str(guess.text), options.add_special_tokens)
        if not 0 < len(tokenized) < self._limits.context_tokens:
            return None
        segments = token_segments(tokenized, find_documents(guess.text, documents))
        if not guess.is_whole:
            options = replace(_ONE_TOKEN, add_special_tokens=options.add_special_tokens)
        speculation.is_whole = guess.is_whole
        speculation.request = BackendRequest(
            self._next_request_id(),
            tokenized,
            segments,
            options,
            search.tenant,
            is_guess=True,
            is_provisional=not speculation.is_final,
        )
        return speculation.request

    def _note_start(self, speculation: Speculation, search: TrackedSearch, tokens: int) -> None:
        speculation.is_under_way, speculation.begun_s = True, self._backend.now()
        search.begun += 1
        self.stats = replace(self.stats, started=self.stats.started + 1)
        part = "the whole prompt" if speculation.is_whole else "up to the documents"
        search.note(speculation.begun_s, SpeculationStep.STARTED, f"{part}, {tokens} tokens")

    def _take(self, speculation: Speculation, delta: Delta) -> None:
        self._sign_of_life()
        is_first = speculation.first_token_s is None
        speculation.add(delta, self._backend.now())
        if is_first:
            self._prefilling.discard(speculation)
            if speculation.was_alone:
                now_s = self._backend.now()
                self._speed = self._speed.after_prefill(
                    now_s - speculation.begun_s, speculation.computed_tokens(now_s, 0.0)
                )

    def _forget(self, speculation: Speculation, search: TrackedSearch) -> None:
        self._unclaimed.pop(speculation, None)
        if search.speculation is speculation:
            search.speculation = None

    def _cancel(
        self, speculation: Speculation, search: TrackedSearch, outcome: SpeculationOutcome
    ) -> None:
        """End one that nobody adopts, for the reason that `outcome` names."""
        self._forget(speculation, search)
        self._prefilling.discard(speculation)
        speculation.cancel()
        if not speculation.is_under_way:
            return
        now_s, stats = self._backend.now(), self.stats
        search.outcome = outcome
        if outcome is SpeculationOutcome.PREFILLED:
            self.stats = replace(stats, prefilled=stats.prefilled + 1)
            return
        search.cancelled += 1
        search.note(now_s, SpeculationStep.CANCELLED, outcome.value)
        wasted = speculation.computed_tokens(now_s, self._speed.token_s)
        if outcome is SpeculationOutcome.OTHER_OPTIONS:
            wasted = 0  # the very tokens of the prompt that came instead
        self.stats = replace(
            stats,
            expired=stats.expired + (outcome is SpeculationOutcome.EXPIRED),
            failed=stats.failed + (outcome is SpeculationOutcome.FAILED),
            cancelled=stats.cancelled
            + (outcome not in (SpeculationOutcome.EXPIRED, SpeculationOutcome.FAILED)),
            wasted_prefill_tokens=stats.wasted_prefill_tokens + wasted,
        )

    # What the prompt says.

    def claim(self, request: BackendRequest, number: int | None) -> Claim:
        """A request has come. number: of the search that its prompt was made from, if it is known."""
        self._expire()
        now_s = self._backend.now()
        search = None if number is None else self._searches.pop(number, None)
        speculation = self._answering(request, search)
        if speculation:
            own = self._unclaimed[speculation]
            self._forget(speculation, own)
            search = search or self._searches.pop(own.number, None)
        if search:
            search.is_closed = True
            search.note(now_s, SpeculationStep.PROMPT)
            self._settle(search, request, now_s, speculation)
        self._prompt_tokens = running_mean(self._prompt_tokens, len(request.prompt))
        return Claim(self, request, search, speculation)

    def _answering(
        self, request: BackendRequest, search: TrackedSearch | None
    ) -> Speculation | None:
        """One that generates just this: the search's own, or that of another which asked the same."""
        own = search.speculation if search else None
        if own and own.is_answer_to(request):
            return own
        return next((s for s in self._unclaimed if s.is_answer_to(request)), None)

    def _settle(
        self,
        search: TrackedSearch,
        request: BackendRequest,
        now_s: float,
        adopted: Speculation | None,
    ) -> None:
        """End what was begun in vain, and remember how it went."""
        if search.speculation:
            outcome = _why_not(search.speculation, request)
            self._cancel(search.speculation, search, outcome)
        if adopted:
            search.outcome = SpeculationOutcome.ADOPTED
            if adopted.request:
                self._backend.adopted(adopted.request.request_id)
            search.note(now_s, SpeculationStep.ADOPTED)
            self.stats = replace(self.stats, adopted=self.stats.adopted + 1)
        estimator = self._estimator(search.chain)
        estimator.note_prompt(now_s - search.documents_since_s, was_idle=search.was_idle)
        self._judge(search)

    def _judge(self, search: TrackedSearch) -> None:
        if search.begun and not search.is_in_estimate:
            search.is_in_estimate = True
            estimator = self._estimator(search.chain)
            estimator.figures = estimator.figures.after_question(
                search.outcome in _OF_USE, search.cancelled
            )

    def _estimator(self, chain: Hashable) -> Estimator:
        estimator = self._estimators.setdefault(chain, Estimator())
        self._estimators.move_to_end(chain)
        if len(self._estimators) > MOST_CHAINS:
            self._estimators.popitem(last=False)
        return estimator

    def prefills_alone(self, claim: Claim) -> bool:
        """An ordinary request begins its prefill. Whether no other is at it."""
        is_alone = not self._prefilling
        self._prefilling.add(claim)
        return is_alone

    def prefilled(self, claim: Claim, seconds: float | None, computed_tokens: int) -> None:
        """It is done, or will not be. seconds: what it took, if that says something of the model."""
        self._prefilling.discard(claim)
        if seconds is not None:
            self._speed = self._speed.after_prefill(seconds, computed_tokens)

    def now(self) -> float:
        return self._backend.now()

    # When nobody comes.

    def _expire(self) -> None:
        now_s = self._backend.now()
        for speculation, search in list(self._unclaimed.items()):
            if search.ended_s is not None and now_s - search.ended_s >= self._unclaimed_s:
                self._cancel(speculation, search, SpeculationOutcome.EXPIRED)
                search.is_closed = True
                self._judge(search)

    def _arm(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._unclaimed_s, self._look_around)

    def _look_around(self) -> None:
        self._timer = None
        self._expire()
        if self._unclaimed:
            self._arm()

    async def end_unclaimed(
        self, outcome: SpeculationOutcome, document_ids: Collection[str] | None = None
    ) -> None:
        """End what waits for a prompt, as before the cache is cleared or the backend restarted.

        document_ids: only what is about one of these documents.
        """
        waiting = [
            (speculation, search)
            for speculation, search in self._unclaimed.items()
            if document_ids is None or any(d.id in document_ids for d in speculation.documents)
        ]
        for speculation, search in waiting:
            self._cancel(speculation, search, outcome)
        tasks = [speculation.task for speculation, _ in waiting if speculation.task]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """End everything, adopted or not; nothing is begun any more."""
        self._is_closed = True
        if self._timer:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _why_not(speculation: Speculation, request: BackendRequest) -> SpeculationOutcome:
    mine = speculation.request
    if mine is None:
        return SpeculationOutcome.NONE
    if not speculation.is_whole:
        is_head = request.prompt.text.startswith(mine.prompt.text) and request.tenant == mine.tenant
        return SpeculationOutcome.PREFILLED if is_head else SpeculationOutcome.OTHER_PROMPT
    if is_same_prompt(mine, request):
        return SpeculationOutcome.OTHER_OPTIONS
    return SpeculationOutcome.OTHER_PROMPT


class Claim:
    """A request with what was done for it beforehand. To be closed: that ends what it adopted.

    begun: the deltas of the adopted speculation; None without one.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        request: BackendRequest,
        search: TrackedSearch | None,
        speculation: Speculation | None,
    ) -> None:
        self._pipeline = pipeline
        self._tokens = len(request.prompt)
        self._search = search
        self._speculation = speculation
        self._claimed_s = pipeline.now()
        self._was_alone = speculation is None and pipeline.prefills_alone(self)
        self.begun: AsyncGenerator[Delta, None] | None = (
            speculation.deltas() if speculation else None
        )

    def first_token(self, cached: CachedTokens) -> None:
        now_s, speculation = self._pipeline.now(), self._speculation
        seconds = now_s - self._claimed_s if self._was_alone else None
        self._pipeline.prefilled(self, seconds, self._tokens - cached.total)
        if self._search:
            at_s = speculation.first_token_s if speculation else None
            self._search.note(now_s if at_s is None else at_s, SpeculationStep.FIRST_TOKEN)

    def report(self) -> SpeculationReport:
        return self._search.report() if self._search else SpeculationReport()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pipeline.prefilled(self, None, 0)
        if self._speculation:
            self._speculation.cancel()
