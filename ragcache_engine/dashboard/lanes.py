"""Turns what happened between a question and its first token into lanes, as pictures draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_engine.values import SpeculationEvent, SpeculationReport, SpeculationStep


@dataclass(frozen=True, slots=True)
class SpeculationSpan:
    """A speculation from its start to its end. fate: "adopted", "prefilled", or why it was cancelled."""

    start_s: float
    end_s: float
    fate: str

    @property
    def was_of_use(self) -> bool:
        return self.fate in ("adopted", "prefilled")


@dataclass(frozen=True, slots=True)
class Lanes:
    """A timeline in the form in which it is drawn, in seconds since the question.

    stages_s: when the search had results. new_s: those of these times at which the documents changed.
    model_s: when the computation that led to the first token began; None if none did.
    """

    stages_s: tuple[float, ...]
    new_s: tuple[float, ...]
    speculations: tuple[SpeculationSpan, ...]
    prompt_s: float | None
    model_s: float | None
    first_token_s: float | None


def lanes(report: SpeculationReport) -> Lanes:
    """Turn a report into the lanes of a picture."""
    stages = [event for event in report.timeline if event.step is SpeculationStep.STAGE]
    named = [event.detail.removeprefix("final: ") for event in stages]
    new = [event.at_s for at, event in enumerate(stages) if at == 0 or named[at] != named[at - 1]]
    prompt_s = _when(report.timeline, SpeculationStep.PROMPT)
    speculations = _speculations(report, prompt_s)
    model_s = (
        speculations[-1].start_s
        if speculations and speculations[-1].fate == "adopted"
        else prompt_s
    )
    return Lanes(
        stages_s=tuple(event.at_s for event in stages),
        new_s=tuple(new),
        speculations=speculations,
        prompt_s=prompt_s,
        model_s=model_s,
        first_token_s=_when(report.timeline, SpeculationStep.FIRST_TOKEN),
    )


def _speculations(report: SpeculationReport, prompt_s: float | None) -> tuple[SpeculationSpan, ...]:
    found: list[SpeculationSpan] = []
    start_s: float | None = None
    for event in report.timeline:
        if event.step is SpeculationStep.STARTED:
            start_s = event.at_s
        elif start_s is not None and event.step in (
            SpeculationStep.CANCELLED,
            SpeculationStep.ADOPTED,
        ):
            fate = event.detail or event.step.value
            found.append(SpeculationSpan(start_s, event.at_s, fate))
            start_s = None
    if start_s is not None:  # a completed prefill has no event for its end
        found.append(
            SpeculationSpan(start_s, start_s if prompt_s is None else prompt_s, "prefilled")
        )
    return tuple(found)


def _when(timeline: Sequence[SpeculationEvent], step: SpeculationStep) -> float | None:
    return next((event.at_s for event in timeline if event.step is step), None)
