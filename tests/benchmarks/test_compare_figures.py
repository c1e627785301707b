"""The arithmetic of benchmarks/compare.py, on numbers made by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from comparing.figures import (
    Play,
    compare_all,
    differing_answers,
    liken,
    system_figures,
    ttft_ratio,
)
from comparing.workload import draw_arrivals, draw_questions, measure_skew


def answer(ttft_s: float = 0.4, **changes: Any) -> dict[str, Any]:
    return {
        "question": 0,
        "at_s": 0.0,
        "ttft_s": ttft_s,
        "total_s": ttft_s + 0.2,
        "search_s": 0.01,
        "prompt": 100,
        "output": 5,
        "cached": [32, 0, 0],
        "speculation": "none",
        "text": "Paris",
        **changes,
    }


def played(system: str, *ttfts_s: float, number: int = 0, **changes: Any) -> Play:
    fields = {"part": "main", "trace": "squad", "load": "rate 1", "rate": 2.0, "span_s": 2.0}
    rest = {
        "cpu_s": 1.0,
        "others_cpu_s": 0.0,
        "foreign_cpu_s": 0.0,
        "answers": [answer(ttft) for ttft in ttfts_s],
    }
    return Play(**{"system": system, "round": number, **fields, **rest, **changes})


def test_a_systems_figures_are_those_of_all_its_rounds():
    rounds = [played("on", 0.1, 0.3), played("on", 0.2, 0.6, number=1)]
    found = system_figures(rounds)
    assert found.requests == 4
    assert found.ttft_p50 == pytest.approx(0.25)
    assert found.ttft_rounds == pytest.approx((0.2, 0.4))
    assert found.ttft == pytest.approx(0.3)
    assert found.tbt == pytest.approx(0.05)
    assert found.cached == pytest.approx((0.32, 0, 0))
    assert found.computed_tokens == pytest.approx(68)
    assert found.completed == pytest.approx(1.0)


def test_answers_of_one_token_have_no_time_between_tokens():
    assert system_figures([played("on", 0.1, answers=[answer(output=1)])]).tbt is None


def test_no_play_has_no_system_figures():
    with pytest.raises(ValueError, match="at least one play"):
        system_figures([])


def test_the_ratio_is_the_median_of_the_rounds_with_what_resampled_pairs_give():
    slow = [played("off", 0.8, 1.0), played("off", 0.4, 0.6), played("off", 0.9, 0.9)]
    quick = [
        played("ragcache", 0.2, 0.4),
        played("ragcache", 0.2, 0.3),
        played("ragcache", 0.3, 0.3),
    ]
    ratio = ttft_ratio(slow, quick)
    assert ratio.value == pytest.approx(3.0)
    assert 1 < ratio.low <= ratio.value <= ratio.high
    assert ratio.is_better


def test_rounds_that_disagree_decide_nothing_however_many_requests_each_has():
    slower, quicker = played("off", *[0.5] * 50), played("off", *[2.0] * 50)
    ours = [played("ragcache", *[1.0] * 50)] * 3
    ratio = ttft_ratio([slower, quicker, quicker], ours)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((0.5, 2.0, 2.0))
    assert not ratio.is_better
    assert not ratio.is_worse


def test_starts_that_disagree_decide_nothing_however_many_rounds_each_has():
    slower, quicker = played("off", 0.5, 0.5), played("off", 2.0, 2.0)
    ours = [played("ragcache", 1.0, 1.0, start=number // 9) for number in range(18)]
    ratio = ttft_ratio([slower] * 9 + [quicker] * 9, ours)
    assert (ratio.low, ratio.high) == pytest.approx((0.5, 2.0))
    assert not ratio.is_better
    assert not ratio.is_worse


def test_equal_times_are_within_the_noise():
    same = [played("off", 0.2, 0.9, 0.4)]
    ratio = ttft_ratio(same, same)
    assert not ratio.is_better
    assert not ratio.is_worse


def test_answers_are_compared_with_the_first_system_that_leaves_prompts_alone():
    other = [answer(text="Rome"), answer()]
    plays = [
        played("off", 0.1, 0.1),
        played("ragcache", answers=other),
        played("canonical", answers=other),
    ]
    (found,) = differing_answers(plays)
    assert (found.left, found.right, found.differing, found.asked) == ("off", "ragcache", 1, 2)


def test_a_difference_smaller_than_the_least_that_counts_is_neither_better_nor_worse():
    plays = [played("on", *[0.20] * 9), played("ragcache", *[0.202] * 9)]
    ((_, _, ratio),) = compare_all(plays)
    assert not ratio.is_worse
    assert not ratio.is_better


def test_arrivals_are_those_of_the_seed_and_come_at_the_rate():
    times = draw_arrivals(4.0, 4000, seed=3)
    assert times == draw_arrivals(4.0, 4000, seed=3) != draw_arrivals(4.0, 4000, seed=4)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.1)
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(
        mean, rel=0.1
    )


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_is_above_zero(rate: float):
    with pytest.raises(ValueError, match="above 0"):
        draw_arrivals(rate, 3, seed=1)


def test_questions_come_in_their_order_or_drawn_with_skew():
    assert draw_questions(3, 7, None, seed=1) == [0, 1, 2, 0, 1, 2, 0]
    skewed = draw_questions(1000, 500, 1.2, seed=1)
    assert skewed == draw_questions(1000, 500, 1.2, seed=1)
    assert len(set(skewed)) < len(set(draw_questions(1000, 500, 0.0, seed=1)))


def test_skew_counts_the_documents_that_take_most_retrievals():
    found = [("a", "b")] * 6 + [("c", "d"), ("e", "f")]
    skew = measure_skew(found, corpus=100)
    assert (skew.head, skew.documents, skew.sets, skew.retrievals) == (2, 6, 3, 16)
    assert "2.0%" in str(skew)


def test_approximate_answers_are_exempt_from_the_check_that_answers_are_equal():
    plays = [
        played("off", 0.1),
        played("ragcache", answers=[answer(text="Rome")]),
        played("anywhere-0", answers=[answer(text="Bern")]),
    ]
    (found,) = differing_answers(plays)
    assert (found.left, found.right) == ("off", "ragcache")


def test_borrowed_tokens_do_not_count_as_computed_nor_as_cached():
    figures = system_figures([played("anywhere-0", answers=[answer(borrowed=60, recomputed=12)])])
    assert (figures.cached, figures.borrowed) == ((0.32, 0.0, 0.0), 0.6)
    assert figures.computed_tokens == 8


def test_closeness_counts_equal_answers_and_accepted_ones():
    full = ["in Paris", "in Rome", ""]
    found = liken(["in Paris", "near Rome", ""], full, [("Paris",), (), ("x",)])
    assert (found.asked, found.equal, found.contained) == (3, 2, 0.5)
    assert found.rouge_l == pytest.approx((1 + 0.5 + 1) / 3)
    assert liken(["a"], ["b"], [()]).contained is None
