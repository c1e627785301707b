"""Which answers are right: those that say an accepted one, however they put it."""

from __future__ import annotations

import pytest

from ragcache_cli.calibrating.grading import is_right, token_f1


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        ("It stands in Paris, France.", "the Paris"),
        ("\u00abParis\u00bb\u2014of course", "paris"),
        ("In 1,066.", "1066"),
    ],
    ids=["articles", "dashes", "digits"],
)
def test_an_accepted_answer_is_found_whatever_articles_case_and_points_it_has(
    answer: str, accepted: str
):
    assert is_right(answer, ["nowhere at all", accepted])


def test_parts_of_words_and_empty_answers_are_not_found():
    assert not is_right("Comparisons", ["Paris"])
    assert not is_right("Anything", ["", "the", "..."])
    assert not is_right("Anything", [])


def test_f1_counts_the_words_shared_with_the_nearest_accepted_answer():
    assert token_f1("In the city of Paris", ["Paris"]) == pytest.approx(2 / 5)
    assert token_f1("Paris Paris", ["Paris", "Paris Paris"]) == 1.0
    assert token_f1("Rome", ["Paris"]) == token_f1("", ["Paris"]) == token_f1("Rome", []) == 0.0
