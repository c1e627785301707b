"""Estimate from running means whether speculating gains time for a chain on this machine.

A guess begins once its prompt is written, tokenised and handed over. The head start is the time from
there to the chain's own prompt. It is the gain, as far as the prefill is long enough to fill it (the
search time that RAGCache's Table 3 counts as overlapped). The loss is the rest of the model's step that a
wrong guess still runs when the right prompt comes. All times are seconds.

Guesses on provisional documents have an estimate of their own. A right one begins earlier, by what the
search still takes after the stage that first has the final documents. Each stage with other documents
makes one wrong, as far as it does not begin with the same ones: a crawler that adds page to page makes
none wrong. Both are seen in every search, whether or not anything was guessed, so a chain with short
searches need not pay for wrong guesses to learn that they do not pay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ragcache_engine.speculation.prefill_load import ModelSpeed, running_mean
from ragcache_engine.values import SamplingOptions

PREPARING_S = 0.0025
"""How long it takes to prepare a guess where none was made yet: two cores and a prompt of 500 tokens."""
LEAST_HEAD_START_S = 0.003
"""With a shorter one, an early start costs as much as it hides, because it must wake two threads."""
FIRST_PROMPT_TIMES = 4
"""How many times as long a chain takes for its first prompt, which loads code and finds empty caches."""
FIRST_CHANGES = 0.25
"""How many times a search is assumed to replace its documents before any was seen. One wrong guess can
cost more than ten right ones gain, so the first searches that replace nothing prove little."""
CHANGES_WEIGHT = 1 / 16
"""Share of the newest search in the running mean of these times."""
LEAST_USEFUL_SHARE = 0.2
QUESTIONS_BETWEEN_TRIALS = 16
"""After how many questions to try again a chain for which speculating gains no time."""
QUESTIONS_KEPT = 8
"""How many of a chain's latest questions tell what to expect of its candidates."""
LEAST_QUESTIONS = 3
"""Before so many questions, candidates are not prepared: only the times are measured."""
STEADY_PROMPTS = 3
"""A chain whose options have changed is guessed for again after so many prompts in a row had the same."""


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """Running means over the questions of one chain.

    lead_s: seconds from the end of the search to the prompt, over questions that came in idle moments;
      None before the first of them.
    useful_share: the share of the questions speculated on whose speculation was useful.
    wrong_guesses: cancelled speculations per question speculated on.
    preparing_s: seconds from the decision to speculate until the backend has the request.
    early_s: seconds from the stages that first had each of the final documents behind those before it,
      to the end of the search: the mean, in idle moments; None before the first search.
    changes: how many times a search replaced the documents of an earlier stage; see TrackedSearch.
    search_s: how long a search takes; None before the first one.
    """

    lead_s: float | None = None
    useful_share: float = 1.0
    wrong_guesses: float = 0.0
    preparing_s: float = PREPARING_S
    early_s: float | None = None
    changes: float = FIRST_CHANGES
    search_s: float | None = None

    @property
    def head_start_s(self) -> float:
        """How long before its prompt a guess begins; 0 before any lead was measured."""
        return max(0.0, (self.lead_s or 0.0) - self.preparing_s)

    @property
    def begins_too_late(self) -> bool:
        """Whether prompts come so soon after their documents that a guess is useless."""
        return self.lead_s is not None and self.head_start_s < LEAST_HEAD_START_S

    def with_early_lead(self) -> ChainFigures:
        """Return the figures for guesses on provisional documents, whose lead is longer by `early_s`."""
        if self.lead_s is None or self.early_s is None:
            return self
        return replace(self, lead_s=self.early_s + self.lead_s)

    def after_search(self, early_s: float, changes: float) -> ChainFigures:
        """Return the figures with one more search that came in an idle moment."""
        return replace(
            self,
            early_s=running_mean(self.early_s, early_s),
            changes=self.changes + CHANGES_WEIGHT * (changes - self.changes),
        )

    def after_lead(self, lead_s: float) -> ChainFigures:
        """Return the figures with one more measured lead."""
        return replace(self, lead_s=running_mean(self.lead_s, lead_s))

    def after_preparing(self, seconds: float) -> ChainFigures:
        """Return the figures with one more guess that took so long to prepare."""
        return replace(self, preparing_s=running_mean(self.preparing_s, seconds))

    def after_question(self, was_of_use: bool, wrong_guesses: float) -> ChainFigures:
        """Return the figures with one more question that was speculated on.

        was_of_use: whether a speculation was adopted, or prefilled the documents as planned.
        wrong_guesses: how many speculations were cancelled for this question; see TrackedSearch.
        """
        return replace(
            self,
            useful_share=running_mean(self.useful_share, float(was_of_use)),
            wrong_guesses=running_mean(self.wrong_guesses, wrong_guesses),
        )


def expected_gain_s(figures: ChainFigures, speed: ModelSpeed, step_tokens: int | None) -> float:
    """Return the seconds that speculating is expected to take off the next question's TTFT.

    A negative number is a loss; 0 before any lead was measured.
    step_tokens: most tokens in one step of the model; None if a prompt is computed in one step.
    """
    if figures.lead_s is None:
        return 0.0
    prefill_s = figures.lead_s if speed.prefill_s is None else speed.prefill_s
    rest_s = _rest_of_step_s(prefill_s, speed, step_tokens)
    gain_s = figures.useful_share * min(figures.head_start_s, prefill_s)
    return gain_s - figures.wrong_guesses * rest_s


def expected_early_gain_s(
    figures: ChainFigures, speed: ModelSpeed, step_tokens: int | None
) -> float:
    """Return the seconds that guesses on provisional documents gain, beside one on the final documents.

    A negative number is a loss; 0 before any search was seen. step_tokens: as in `expected_gain_s`.
    """
    if figures.early_s is None:
        return 0.0
    prefill_s = figures.early_s if speed.prefill_s is None else speed.prefill_s
    rest_s = _rest_of_step_s(prefill_s, speed, step_tokens)
    return min(figures.early_s, prefill_s) - figures.changes * rest_s


def _rest_of_step_s(prefill_s: float, speed: ModelSpeed, step_tokens: int | None) -> float:
    """Return how long a wrong guess still computes when the right prompt comes: half of its step."""
    step_s = prefill_s if step_tokens is None else min(prefill_s, speed.token_s * step_tokens)
    return step_s / 2


def is_worthwhile(figures: ChainFigures, speed: ModelSpeed, step_tokens: int | None) -> bool:
    """Return True if speculating is expected to gain time, or nothing was measured yet."""
    if figures.useful_share < LEAST_USEFUL_SHARE or figures.begins_too_late:
        return False
    return figures.lead_s is None or expected_gain_s(figures, speed, step_tokens) > 0.0


@dataclass(slots=True)
class CandidateFigures:
    """What a chain's latest questions tell of its candidates: documents of which some were in the prompt.

    leads_s: seconds from the first candidates to the prompt. common: how many of the prompt's documents
      were the first candidates, in their order.
    """

    leads_s: deque[float] = field(default_factory=lambda: deque(maxlen=QUESTIONS_KEPT))
    common: deque[int] = field(default_factory=lambda: deque(maxlen=QUESTIONS_KEPT))

    def note_prompt(
        self, lead_s: float, candidates: Sequence[str], documents: Sequence[str]
    ) -> None:
        """Note that a prompt came so long after its candidates. documents: those in it, in its order."""
        self.leads_s.append(lead_s)
        alike = (one == other for one, other in zip(candidates, documents, strict=False))
        self.common.append(sum(takewhile(bool, alike)))

    @property
    def lead_s(self) -> float:
        """How long after its candidates a prompt comes, in all but one of the latest questions."""
        return _in_all_but_one(self.leads_s)

    @property
    def sure_documents(self) -> int:
        """How many of the first candidates begin the prompt, in all but one of the latest questions."""
        return int(_in_all_but_one(self.common))


def _in_all_but_one(values: Sequence[float]) -> float:
    """Return what all values but the least reach; 0 while there are too few of them."""
    return sorted(values)[1] if len(values) >= LEAST_QUESTIONS else 0.0


@dataclass(slots=True)
class Estimator:
    """Keep one chain's figures. Where they speak against speculating, try it again now and then."""

    figures: ChainFigures = ChainFigures()
    candidates: CandidateFigures = field(default_factory=CandidateFigures)
    _has_seen_prompt: bool = False
    _has_only_first_lead: bool = False  # the lead is a part of that of the first prompt
    _skipped: int = 0
    _options: SamplingOptions | None = None  # of the last prompt
    _same_options: int = STEADY_PROMPTS  # prompts in a row with these options; enough at first

    def note_search(
        self, early_s: float, changes: float, search_s: float, *, was_idle: bool
    ) -> None:
        """Note that a search first had its final documents `early_s` before its end, in the mean.

        changes: how many times it had replaced others by then. search_s: how long it took. was_idle: as
        in `note_prompt`.
        """
        mean_s = running_mean(self.figures.search_s, search_s)
        self.figures = replace(self.figures, search_s=mean_s)
        if was_idle:
            self.figures = self.figures.after_search(early_s, changes)

    def note_prompt(
        self, lead_s: float, *, was_idle: bool, options: SamplingOptions | None = None
    ) -> None:
        """Note that a prompt came `lead_s` after the end of its search, with these sampling options.

        was_idle: no other prefill was pending when its documents were found. Otherwise the lead is not
          counted: a busy process delays everything, so its times do not show what a guess gains in idle
          moments, when guesses gain most.
        """
        self._note_options(options)
        is_first, self._has_seen_prompt = not self._has_seen_prompt, True
        if not was_idle:
            return
        if is_first or self._has_only_first_lead:
            lead_s = lead_s / FIRST_PROMPT_TIMES if is_first else lead_s
            self.figures = replace(self.figures, lead_s=lead_s)
        else:
            self.figures = self.figures.after_lead(lead_s)
        self._has_only_first_lead = is_first

    def may_begin_early(self, speed: ModelSpeed, step_tokens: int | None) -> bool:
        """Return whether to guess on provisional documents, or nothing is known of searches yet."""
        early_s = self.figures.early_s
        return early_s is None or (
            early_s >= LEAST_HEAD_START_S
            and expected_early_gain_s(self.figures, speed, step_tokens) > 0.0
        )

    def decide_next(
        self, speed: ModelSpeed, step_tokens: int | None, *, is_early: bool = False
    ) -> bool:
        """Decide whether to speculate on the next question. Call this once for each question.

        step_tokens: as in `expected_gain_s`. is_early: whether the guess would begin on provisional
          documents.
        """
        figures = self.figures.with_early_lead() if is_early else self.figures
        if figures.lead_s is None and self._has_seen_prompt:
            return False  # every prompt so far came in a busy moment
        if figures.begins_too_late:
            return False  # leads are measured without guessing too: a trial would show nothing new
        if self._same_options < STEADY_PROMPTS:
            return False  # a guess with other options could not be adopted; nor would a trial show more
        if is_worthwhile(figures, speed, step_tokens) or self._skipped >= QUESTIONS_BETWEEN_TRIALS:
            self._skipped = 0
            return True
        self._skipped += 1
        return False

    def _note_options(self, options: SamplingOptions | None) -> None:
        before, self._options = self._options, options
        is_same = before is None or options is None or options == before
        self._same_options = self._same_options + 1 if is_same else 1
