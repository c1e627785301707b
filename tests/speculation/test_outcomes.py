"""How a speculation that was not adopted ended, and what the statistics say of it."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import SamplingOptions, SpeculationOutcome, SpeculationStats, TokenizedPrompt
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.outcomes import count_outcome, find_outcome, share_in_vain


def request(text: str, max_tokens: int = 4, tenant: str | None = None) -> BackendRequest:
    prompt = TokenizedPrompt(text, [ord(letter) for letter in text])
    return BackendRequest("r", prompt, (), SamplingOptions(max_tokens=max_tokens), tenant)


def guess(expected: BackendRequest | None, *, is_whole: bool = True) -> Speculation:
    return Speculation((), 0.0, request=expected, is_whole=is_whole)


@pytest.mark.parametrize(
    ("speculation", "outcome"),
    [
        (guess(None), SpeculationOutcome.NONE),
        (guess(request("prompt", max_tokens=9)), SpeculationOutcome.OTHER_OPTIONS),
        (guess(request("another")), SpeculationOutcome.OTHER_PROMPT),
        (guess(request("prompt", tenant="t")), SpeculationOutcome.OTHER_PROMPT),
        (guess(request("prom", 1), is_whole=False), SpeculationOutcome.PREFILLED),
        (guess(request("other", 1), is_whole=False), SpeculationOutcome.OTHER_PROMPT),
        (guess(request("prom", 1, "t"), is_whole=False), SpeculationOutcome.OTHER_PROMPT),
    ],
)
def test_the_outcome_names_what_was_not_as_expected(
    speculation: Speculation, outcome: SpeculationOutcome
):
    assert find_outcome(speculation, request("prompt")) is outcome


@pytest.mark.parametrize(
    ("outcome", "counter", "wasted"),
    [
        (SpeculationOutcome.ADOPTED, "adopted", 0),
        (SpeculationOutcome.PREFILLED, "prefilled", 0),
        (SpeculationOutcome.OTHER_OPTIONS, "cancelled", 0),
        (SpeculationOutcome.OTHER_PROMPT, "cancelled", 7),
        (SpeculationOutcome.OTHER_DOCUMENTS, "cancelled", 7),
        (SpeculationOutcome.EXPIRED, "expired", 7),
        (SpeculationOutcome.FAILED, "failed", 7),
    ],
)
def test_every_speculation_is_counted_once_and_only_lost_work_as_wasted(
    outcome: SpeculationOutcome, counter: str, wasted: int
):
    before = SpeculationStats(5, 1, 1, 1, 1, 1, wasted_prefill_tokens=100)
    after = count_outcome(before, outcome, computed_tokens=7)
    assert asdict(after) == asdict(
        replace(before, **{counter: 2}, wasted_prefill_tokens=100 + wasted)
    )


@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_of_a_guess_that_is_in_vain_with_which_the_prompt_does_not_begin(guess: str, prompt: str):
    same = next(
        (at for at, pair in enumerate(zip(guess, prompt, strict=False)) if pair[0] != pair[1]),
        min(len(guess), len(prompt)),
    )
    assert share_in_vain(guess, prompt) == (1.0 - same / len(guess) if guess else 0.0)
