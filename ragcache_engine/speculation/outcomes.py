"""Tell how a speculation ended, and count it in the statistics. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from ragcache_engine.protocols import BackendRequest
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.values import SpeculationOutcome, SpeculationStats

USEFUL = (SpeculationOutcome.ADOPTED, SpeculationOutcome.PREFILLED)
"""The outcomes of work that did what it was started for."""


def find_outcome(speculation: Speculation, request: BackendRequest) -> SpeculationOutcome:
    """Say what becomes of a speculation that does not answer the request of its own search."""
    guess = speculation.request
    if guess is None:
        return SpeculationOutcome.NONE
    if not speculation.is_whole:
        is_head = (
            request.prompt.text.startswith(guess.prompt.text) and request.tenant == guess.tenant
        )
        return SpeculationOutcome.PREFILLED if is_head else SpeculationOutcome.OTHER_PROMPT
    if speculation.is_for_prompt_of(request):
        return SpeculationOutcome.OTHER_OPTIONS
    return SpeculationOutcome.OTHER_PROMPT


def share_in_vain(guess: str, prompt: str) -> float:
    """Return the share of a guessed prompt's characters with which the prompt does not begin."""
    same, over = 0, min(len(guess), len(prompt)) + 1
    while over - same > 1:  # it begins with the first `same`, and not with the first `over`
        middle = (same + over) // 2
        if prompt.startswith(guess[:middle]):
            same = middle
        else:
            over = middle
    return 1.0 - same / len(guess) if guess else 0.0


def count_outcome(
    stats: SpeculationStats, outcome: SpeculationOutcome, computed_tokens: int = 0
) -> SpeculationStats:
    """Return the statistics with one more speculation that ended with this outcome.

    computed_tokens: the prompt tokens that the speculation prefilled.
    """
    # OTHER_OPTIONS wastes nothing either: the request has the same tokens as the guess.
    if outcome not in USEFUL and outcome is not SpeculationOutcome.OTHER_OPTIONS:
        wasted = stats.wasted_prefill_tokens + computed_tokens
        stats = replace(stats, wasted_prefill_tokens=wasted)
    match outcome:
        case SpeculationOutcome.ADOPTED:
            return replace(stats, adopted=stats.adopted + 1)
        case SpeculationOutcome.PREFILLED:
            return replace(stats, prefilled=stats.prefilled + 1)
        case SpeculationOutcome.EXPIRED:
            return replace(stats, expired=stats.expired + 1)
        case SpeculationOutcome.FAILED:
            return replace(stats, failed=stats.failed + 1)
    return replace(stats, cancelled=stats.cancelled + 1)
