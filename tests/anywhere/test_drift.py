"""When the likeness of answers is too low."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.anywhere.drift import ALLOWANCE, MOST_SHORTFALL, WINDOW, Drift

LEAST = 0.8


def noted_until_off(drift: Drift, draw: random.Random, mean: float, most: int) -> int | None:
    """Note answers with this mean, as they are measured: many are equal, and the others anything.

    Return how many it took to switch borrowing off; None if `most` did not.
    """
    equal = 2 * mean - 1

    def likeness() -> float:
        return 1.0 if draw.random() < equal else draw.random()

    return next((n for n in range(1, most + 1) if drift.note(likeness())), None)


def test_few_answers_are_not_judged_however_bad():
    drift = Drift(LEAST)
    least_count = int(MOST_SHORTFALL / (LEAST - ALLOWANCE))
    assert not any(drift.note(0.0) for _ in range(least_count))
    assert drift.note(0.0)
    assert drift.is_off


def test_answers_as_alike_as_was_measured_never_switch_it_off_however_many_are_looked_at():
    # The mean of the last 50 alone is below the bound about every other time.
    for seed in range(10):
        assert noted_until_off(Drift(LEAST), random.Random(seed), LEAST, 2000) is None


def test_answers_that_become_worse_switch_it_off_soon_however_many_were_good():
    taken: list[int] = []
    for seed in range(20):
        draw, drift = random.Random(seed), Drift(LEAST)
        assert noted_until_off(drift, draw, 0.95, 1000) is None
        taken.append(noted_until_off(drift, draw, LEAST - 0.2, 1000) or 1000)
    assert sorted(taken)[10] < 100


def test_what_is_off_stays_off_and_says_so_once():
    drift = Drift(LEAST)
    assert sum(drift.note(0.0) for _ in range(20)) == 1
    assert not any(drift.note(1.0) for _ in range(WINDOW))
    assert drift.is_off
    assert drift.report() == {"rechecked": 20 + WINDOW, "drift": 0.0, "is_switched_off": True}


def test_the_reported_mean_is_of_the_last_answers():
    drift = Drift(LEAST)
    for likeness in [0.0] * 3 + [1.0] * (WINDOW - 5) + [0.5] * 10:
        drift.note(likeness)
    assert drift.mean == 0.9


def test_before_the_first_answer_there_is_no_drift():
    assert Drift(LEAST).report() == {"rechecked": 0, "drift": None, "is_switched_off": False}


@given(st.lists(st.floats(LEAST - ALLOWANCE, 1), max_size=80))
def test_answers_that_are_alike_enough_never_switch_it_off(likenesses: list[float]):
    drift = Drift(LEAST)
    assert not any(drift.note(one) for one in likenesses)


def test_without_a_measured_bound_answers_are_reported_and_nothing_is_switched_off():
    drift = Drift(None)
    assert not any(drift.note(0.0) for _ in range(40))
    assert drift.report() == {"rechecked": 40, "drift": 1.0, "is_switched_off": False}
