"""When the likeness of answers is too low."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.anywhere.drift import Drift


def test_few_answers_are_not_judged_however_bad():
    drift = Drift(0.8, window=20)
    assert not any(drift.note(0.0) for _ in range(19))
    assert drift.note(0.0)
    assert drift.is_off


def test_only_the_last_answers_count():
    drift = Drift(0.8, window=20)
    for _ in range(20):
        drift.note(1.0)
    assert [drift.note(0.0) for _ in range(5)] == [False, False, False, False, True]
    assert drift.mean == 0.75


def test_what_is_off_stays_off_and_says_so_once():
    drift = Drift(0.8, window=20)
    for _ in range(20):
        drift.note(0.0)
    assert not any(drift.note(1.0) for _ in range(40))
    assert drift.is_off
    assert drift.report() == {"rechecked": 60, "drift": 0.0, "is_switched_off": True}


def test_before_the_first_answer_there_is_no_drift():
    assert Drift(0.8).report() == {"rechecked": 0, "drift": None, "is_switched_off": False}


@given(st.lists(st.floats(0.8, 1), max_size=80))
def test_answers_that_are_alike_enough_never_switch_it_off(likenesses: list[float]):
    drift = Drift(0.79, window=20)
    assert not any(drift.note(one) for one in likenesses)


def test_without_a_measured_bound_answers_are_reported_and_nothing_is_switched_off():
    drift = Drift(None, window=20)
    assert not any(drift.note(0.0) for _ in range(40))
    assert drift.report() == {"rechecked": 40, "drift": 1.0, "is_switched_off": False}


def test_a_window_of_too_few_answers_is_refused():
    with pytest.raises(ValueError, match="20"):
        Drift(0.8, window=19)
