"""How good an answer is, on texts made by hand."""

from __future__ import annotations

import pytest
from studies.quality import contained, exact, grade, rouge_l


def test_answers_match_whatever_articles_case_and_points_they_have():
    assert exact("The Eiffel Tower.", "eiffel tower")
    assert contained("It stands in Paris, France.", "Paris")
    assert not contained("Comparisons", "Paris")


def test_rouge_l_is_that_of_rouge_score():
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    pairs = [
        ("It was built in 1889 in Paris.", "built in Paris"),
        ("the cat sat on the mat", "on the mat sat the cat"),
        ("nothing", "else"),
        ("", "something"),
    ]
    for said, gold in pairs:
        assert rouge_l(said, gold) == pytest.approx(scorer.score(gold, said)["rougeL"].fmeasure)


def test_quality_takes_the_best_accepted_answer_and_passes_over_unknown_ones():
    found = grade(["Paris", "no idea", "x"], [("London", "paris"), ("Rome",), ()])
    assert found is not None
    assert (found.questions, found.exact, found.contained) == (2, 0.5, 0.5)
    assert grade(["x"], [()]) is None
