"""Whether speculating gains time on this machine, with this chain: an estimate from running figures.

What there is to gain is the time between the stage at which the search had its final documents and the
prompt, as far as the prefill is long enough to fill it (the search time that RAGCache's Table 3 counts as
overlapped). What there is to lose is the rest of the step that a wrong guess still
runs when the right prompt comes. All times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NEWEST_WEIGHT = 0.25
LEAST_LEAD_S = 0.003
"""Below it, starting early costs about what it hides: two threads have to hear of it."""
LEAST_USEFUL_SHARE = 0.2
QUESTIONS_BETWEEN_TRIALS = 16


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """Running means over the questions of one chain. None: not measured yet.

    lead_s: from the stage that first had the final documents to the prompt, of questions that came
      in idle moments.
    useful_share: share of the questions, among those speculated on, whose work was of use.
    wrong_guesses: speculations cancelled per question speculated on.
    """

    lead_s: float | None = None
    useful_share: float = 1.0
    wrong_guesses: float = 0.0

    @property
    def has_too_short_a_lead(self) -> bool:
        """Whether prompts are known to come too soon after their documents to begin before them."""
        return self.lead_s is not None and self.lead_s < LEAST_LEAD_S

    def after_lead(self, lead_s: float) -> ChainFigures:
        return replace(self, lead_s=running_mean(self.lead_s, lead_s))

    def after_question(self, was_of_use: bool, wrong_guesses: int) -> ChainFigures:
        """was_of_use: adopted, or prefilled as meant."""
        return replace(
            self,
            useful_share=running_mean(self.useful_share, float(was_of_use)),
            wrong_guesses=running_mean(self.wrong_guesses, wrong_guesses),
        )


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Running means over all requests that had the model to themselves.

    prefill_s: from request to first token. computed_tokens: what was computed in that time.
    """

    prefill_s: float | None = None
    computed_tokens: float | None = None

    def after_prefill(self, seconds: float, computed_tokens: int) -> ModelSpeed:
        return ModelSpeed(
            running_mean(self.prefill_s, seconds),
            running_mean(self.computed_tokens, computed_tokens),
        )

    @property
    def token_s(self) -> float:
        """Seconds to compute one prompt token; 0 before anything was measured."""
        return (self.prefill_s or 0.0) / max(1.0, self.computed_tokens or 0.0)


def running_mean(so_far: float | None, newest: float) -> float:
    return newest if so_far is None else so_far + NEWEST_WEIGHT * (newest - so_far)


def expected_gain_s(figures: ChainFigures, speed: ModelSpeed, step_tokens: int | None) -> float:
    """Seconds that speculating is expected to take off the next question's TTFT; negative: to add.

    step_tokens: of a step at most; None if a prompt is computed in one.
    """
    if figures.lead_s is None:
        return 0.0
    prefill_s = figures.lead_s if speed.prefill_s is None else speed.prefill_s
    step_s = prefill_s if step_tokens is None else min(prefill_s, speed.token_s * step_tokens)
    # A wrong guess is met in the middle of its step, on average.
    return (
        figures.useful_share * min(figures.lead_s, prefill_s) - figures.wrong_guesses * step_s / 2
    )


def is_worthwhile(figures: ChainFigures, speed: ModelSpeed, step_tokens: int | None) -> bool:
    """Optimistic until something was measured."""
    if figures.useful_share < LEAST_USEFUL_SHARE or figures.has_too_short_a_lead:
        return False
    return figures.lead_s is None or expected_gain_s(figures, speed, step_tokens) > 0.0


@dataclass(slots=True)
class Estimator:
    """One chain's figures, and when to try again although they speak against it."""

    figures: ChainFigures = ChainFigures()
    _has_asked: bool = False
    _skipped: int = 0

    def note_prompt(self, lead_s: float, *, was_idle: bool) -> None:
        """A prompt came that long after its final documents.

        was_idle: nothing else waited for its prefill then. A busy process hands everything on late: what
        it takes is no measure of what is gained in idle moments, when a guess does most.
        """
        self._has_asked = True
        if was_idle:
            self.figures = self.figures.after_lead(lead_s)

    def decide_next(self, speed: ModelSpeed, step_tokens: int | None) -> bool:
        """Whether to speculate on the next question. To be asked once a question."""
        if self.figures.lead_s is None and self._has_asked:
            return False
        if self.figures.has_too_short_a_lead:
            return False  # measured without guessing: a trial would tell nothing new
        if (
            is_worthwhile(self.figures, speed, step_tokens)
            or self._skipped >= QUESTIONS_BETWEEN_TRIALS
        ):
            self._skipped = 0
            return True
        self._skipped += 1
        return False
