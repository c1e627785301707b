"""One estimator for each chain; the chains least recently seen are forgotten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from ragcache_engine.speculation.estimate import CandidateFigures, Estimator
from ragcache_engine.speculation.prefill_load import ModelSpeed
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import SamplingOptions

MOST_CHAINS = 64


class ChainEstimators:
    """Measure what speculating gains for each chain, and decide by it. On the engine's loop only.

    is_automatic: whether to speculate only where measurements show that it gains time; False: always.
    """

    def __init__(self, *, is_automatic: bool) -> None:
        self._is_automatic = is_automatic
        self._estimators: OrderedDict[Hashable, Estimator] = OrderedDict()

    def is_worth_guessing(
        self, search: TrackedSearch, speed: ModelSpeed, step_tokens: int | None, *, is_early: bool
    ) -> bool:
        """Decide whether to speculate on this question now. The decision is made once and kept.

        step_tokens: the most tokens in one step of the model; None if one step computes a whole prompt.
        is_early: whether the search still runs. A question that is left for the end of its search is
          decided then.
        """
        if not self._is_automatic:
            return True
        estimator = self._of(search.chain)
        if is_early and not estimator.may_begin_early(speed, step_tokens):
            return False
        if search.is_worth_guessing is None:
            search.is_worth_guessing = estimator.decide_next(speed, step_tokens, is_early=is_early)
        return search.is_worth_guessing

    def note_prompt(
        self,
        search: TrackedSearch,
        now_s: float,
        options: SamplingOptions,
        documents: Sequence[str] = (),
    ) -> None:
        """Measure when the search had its documents, and when its prompt came; note the options.

        documents: those in the prompt, in its order.
        """
        was_idle = search.was_idle
        ended_s = now_s if search.ended_s is None else search.ended_s
        estimator = self._of(search.chain)
        estimator.note_search(
            search.early_s(), search.changes, ended_s - search.started_s, was_idle=was_idle
        )
        estimator.note_prompt(now_s - ended_s, was_idle=was_idle, options=options)
        if search.candidates_s is not None:
            names = [one.id for one in search.candidates]
            estimator.candidates.note_prompt(now_s - search.candidates_s, names, documents)

    def note_outcome(self, search: TrackedSearch) -> None:
        """Count, once, whether the work that was started for this search was of use."""
        if search.speculations_started and not search.is_in_estimate:
            search.is_in_estimate = True
            estimator = self._of(search.chain)
            figures = estimator.figures.after_question(
                search.was_of_use, search.speculations_cancelled
            )
            # A busy process prepares more slowly than it would in the idle moments that guesses are for.
            if search.was_idle:
                figures = figures.after_preparing(search.preparing_s)
            estimator.figures = figures

    def search_s(self, chain: Hashable) -> float:
        """Return how long the chain's searches take; 0 if none was seen."""
        known = self._estimators.get(chain)
        return 0.0 if known is None else known.figures.search_s or 0.0

    def candidates_of(self, chain: Hashable) -> CandidateFigures:
        """Return what the chain's questions tell about its candidates."""
        return self._of(chain).candidates

    def _of(self, chain: Hashable) -> Estimator:
        estimator = self._estimators.setdefault(chain, Estimator())
        self._estimators.move_to_end(chain)
        if len(self._estimators) > MOST_CHAINS:
            self._estimators.popitem(last=False)
        return estimator
