"""The estimate says no where there is nothing to gain, and never for ever."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ragcache_engine import SamplingOptions
from ragcache_engine.speculation.estimate import (
    FIRST_PROMPT_TIMES,
    LEAST_HEAD_START_S,
    PREPARING_S,
    QUESTIONS_BETWEEN_TRIALS,
    QUESTIONS_KEPT,
    STEADY_PROMPTS,
    CandidateFigures,
    ChainFigures,
    Estimator,
    expected_early_gain_s,
    expected_gain_s,
    is_worthwhile,
)
from ragcache_engine.speculation.prefill_load import ModelSpeed

STEP = 512
FAST = ModelSpeed().after_prefill(1.0, 1000)

seconds = st.floats(0, 10)
shares = st.floats(0, 1)
figures = st.builds(ChainFigures, st.none() | seconds, shares, st.floats(0, 8))
speeds = st.lists(st.tuples(seconds, st.integers(0, 9000)), max_size=4).map(
    lambda seen: _after(ModelSpeed(), seen)
)


def _after(speed: ModelSpeed, seen: list[tuple[float, int]]) -> ModelSpeed:
    for prefill_s, tokens in seen:
        speed = speed.after_prefill(prefill_s, tokens)
    return speed


def test_nothing_measured_means_try():
    assert is_worthwhile(ChainFigures(), ModelSpeed(), STEP)


def test_a_search_of_half_a_second_is_worth_it_and_one_of_a_millisecond_is_not():
    assert is_worthwhile(ChainFigures(lead_s=0.5), FAST, STEP)
    assert not is_worthwhile(ChainFigures(lead_s=0.001), FAST, STEP)


def test_wrong_guesses_that_cost_more_than_right_ones_gain_are_not_worth_it():
    right, wrong = (
        ChainFigures(lead_s=0.1),
        ChainFigures(lead_s=0.1, useful_share=0.3, wrong_guesses=2.0),
    )
    assert is_worthwhile(right, FAST, STEP)
    assert not is_worthwhile(wrong, FAST, STEP)


def test_prompts_that_never_come_as_expected_end_it():
    seen = ChainFigures(lead_s=0.5)
    for _ in range(10):
        seen = seen.after_question(was_of_use=False, wrong_guesses=1)
    assert not is_worthwhile(seen, FAST, STEP)


def test_one_bad_question_does_not_end_it():
    assert is_worthwhile(ChainFigures(lead_s=0.5).after_question(False, 1), FAST, STEP)


@given(figures, speeds)
def test_a_longer_lead_never_gains_less(before: ChainFigures, speed: ModelSpeed):
    longer = ChainFigures((before.lead_s or 0.0) + 1.0, before.useful_share, before.wrong_guesses)
    if before.lead_s is not None and speed.prefill_s is not None:
        assert expected_gain_s(longer, speed, STEP) >= expected_gain_s(before, speed, STEP)


@given(figures, speeds)
def test_more_wrong_guesses_never_gain_more(before: ChainFigures, speed: ModelSpeed):
    worse = ChainFigures(before.lead_s, before.useful_share, before.wrong_guesses + 1)
    assert expected_gain_s(worse, speed, STEP) <= expected_gain_s(before, speed, STEP)


@given(figures, speeds)
@pytest.mark.slow
def test_no_more_is_gained_than_there_is_to_hide(before: ChainFigures, speed: ModelSpeed):
    assert expected_gain_s(before, speed, STEP) <= (before.lead_s or 0.0)


@given(figures, speeds)
def test_shorter_steps_never_gain_less(before: ChainFigures, speed: ModelSpeed):
    whole = expected_gain_s(before, speed, None)
    assert whole <= expected_gain_s(before, speed, 2 * STEP) <= expected_gain_s(before, speed, STEP)


@given(figures, speeds)
def test_it_is_tried_again_now_and_then(before: ChainFigures, speed: ModelSpeed):
    assume(not before.begins_too_late)
    estimator = Estimator(before)
    wanted = [estimator.decide_next(speed, STEP) for _ in range(3 * QUESTIONS_BETWEEN_TRIALS)]
    assert True in wanted[: QUESTIONS_BETWEEN_TRIALS + 1]
    assert all(wanted) == is_worthwhile(before, speed, STEP)


@given(st.floats(0, 0.999), shares, speeds)
def test_no_trial_is_wasted_where_the_prompt_is_known_to_come_at_once(
    share: float, adopted: float, speed: ModelSpeed
):
    estimator = Estimator(ChainFigures(PREPARING_S + share * LEAST_HEAD_START_S, adopted))
    assert not any(estimator.decide_next(speed, STEP) for _ in range(3 * QUESTIONS_BETWEEN_TRIALS))
    for _ in range(8):
        estimator.note_prompt(0.5, was_idle=True)
    later = [estimator.decide_next(FAST, STEP) for _ in range(QUESTIONS_BETWEEN_TRIALS + 1)]
    assert True in later


def test_the_time_that_a_guess_takes_to_prepare_is_no_gain():
    usual = ChainFigures(lead_s=0.05)
    slow = usual
    for _ in range(32):
        slow = slow.after_preparing(0.04)
    assert is_worthwhile(usual, FAST, STEP)
    assert expected_gain_s(slow, FAST, STEP) < 0.25 * expected_gain_s(usual, FAST, STEP)
    for _ in range(32):
        slow = slow.after_preparing(0.049)
    assert not is_worthwhile(slow, FAST, STEP)


def test_a_first_prompt_that_loads_code_is_no_measure_of_the_next_ones():
    estimator = Estimator()
    estimator.note_prompt(0.01, was_idle=True)  # the next ones take a third of it
    assert not estimator.decide_next(FAST, STEP)
    estimator = Estimator()
    estimator.note_prompt(0.4, was_idle=True)
    assert estimator.figures.lead_s == 0.4 / FIRST_PROMPT_TIMES
    assert estimator.decide_next(FAST, STEP)  # nothing that slow is only a first time
    estimator.note_prompt(0.003, was_idle=True)
    assert estimator.figures.lead_s == 0.003  # the first one is forgotten
    assert not estimator.decide_next(FAST, STEP)


def test_what_a_busy_process_takes_is_no_measure_of_what_there_is_to_gain():
    estimator = Estimator()
    assert estimator.decide_next(FAST, STEP)  # nothing is known
    for _ in range(8):
        estimator.note_prompt(0.5, was_idle=False)
    assert estimator.figures.lead_s is None
    assert not estimator.decide_next(FAST, STEP)
    estimator.note_prompt(0.5, was_idle=True)
    assert estimator.decide_next(FAST, STEP)


def test_after_a_bad_time_good_trials_bring_it_back():
    estimator = Estimator(ChainFigures(lead_s=0.5, useful_share=0.0, wrong_guesses=1.0))
    for _ in range(4):
        estimator.figures = estimator.figures.after_question(was_of_use=True, wrong_guesses=0)
    assert estimator.decide_next(FAST, STEP)


def test_where_each_prompt_has_other_options_nothing_is_guessed_until_they_hold():
    estimator = Estimator()
    for seed in (4, 4, 9):
        assert estimator.decide_next(FAST, STEP)  # they have held so far
        estimator.note_prompt(0.5, was_idle=True, options=SamplingOptions(seed=seed))
    for seed in [*range(3 * QUESTIONS_BETWEEN_TRIALS), 5]:
        assert not estimator.decide_next(FAST, STEP)
        estimator.note_prompt(0.5, was_idle=True, options=SamplingOptions(seed=seed))
    for _ in range(STEADY_PROMPTS - 1):
        assert not estimator.decide_next(FAST, STEP)
        estimator.note_prompt(0.5, was_idle=True, options=SamplingOptions(seed=5))
    assert estimator.decide_next(FAST, STEP)


def after_searches(searches: int, early_s: float, changes: int = 0) -> Estimator:
    """Make an estimator that has seen so many searches alike."""
    estimator = Estimator()
    for _ in range(searches):
        estimator.note_search(early_s, changes, 2 * early_s, was_idle=True)
    return estimator


def test_provisional_documents_are_tried_where_no_search_was_seen():
    assert Estimator().may_begin_early(FAST, STEP)


def test_a_search_of_milliseconds_is_waited_for():
    # Its wrong guesses would cost the rest of a step of half a second.
    assert not any(
        after_searches(n, early_s=0.002).may_begin_early(FAST, STEP) for n in range(1, 64)
    )


def test_a_search_of_some_milliseconds_must_prove_that_it_replaces_nothing():
    assert not after_searches(4, early_s=0.02).may_begin_early(FAST, STEP)
    assert after_searches(40, early_s=0.02).may_begin_early(FAST, STEP)
    estimator = after_searches(40, early_s=0.02)
    estimator.note_search(0.0, changes=1, search_s=1.0, was_idle=True)
    assert not estimator.may_begin_early(FAST, STEP)


def test_a_long_search_is_not_waited_for_as_long_as_it_keeps_its_documents():
    assert after_searches(1, early_s=0.4).may_begin_early(FAST, STEP)
    assert not after_searches(16, early_s=0.4, changes=7).may_begin_early(FAST, STEP)


def test_a_search_in_a_busy_moment_proves_nothing():
    estimator = Estimator()
    estimator.note_search(0.002, changes=3, search_s=1.0, was_idle=False)
    assert estimator.figures == ChainFigures(search_s=1.0), "but how long it takes"


def test_what_the_search_still_takes_is_a_head_start_for_an_early_guess_only():
    estimator = Estimator(ChainFigures(lead_s=0.001, early_s=0.3, changes=0.0))
    assert not estimator.decide_next(FAST, STEP)
    assert estimator.decide_next(FAST, STEP, is_early=True)


@given(seconds, st.floats(0, 8), speeds)
def test_more_replaced_documents_never_gain_more(early_s: float, changes: float, speed: ModelSpeed):
    few, more = (ChainFigures(early_s=early_s, changes=changes + extra) for extra in (0, 1))
    assert expected_early_gain_s(more, speed, STEP) <= expected_early_gain_s(few, speed, STEP)
    assert expected_early_gain_s(few, speed, STEP) <= early_s


def test_candidates_are_prepared_in_the_time_that_all_but_one_of_the_latest_questions_left():
    figures = CandidateFigures()
    for lead_s in (0.4, 0.1):
        figures.note_prompt(lead_s, ["a", "b"], ["b"])
        assert figures.lead_s == 0.0, "two questions tell too little"
    figures.note_prompt(0.3, ["a", "b"], ["b"])
    assert figures.lead_s == 0.3
    for _ in range(QUESTIONS_KEPT):
        figures.note_prompt(0.01, ["a", "b"], ["b"])
    assert figures.lead_s == 0.01


def test_sure_are_the_candidates_with_which_prompts_began():
    figures = CandidateFigures()
    for documents in (["a", "b", "c"], ["a", "b"], ["a", "x"]):
        figures.note_prompt(0.3, ["a", "b", "d"], documents)
    assert figures.sure_documents == 2
    figures.note_prompt(0.3, ["a", "b"], ["b", "a"])
    assert figures.sure_documents == 1
