"""How good an answer is, on texts made by hand."""

from __future__ import annotations

from comparing.grading import contained, exact


def test_answers_match_whatever_articles_case_and_points_they_have():
    assert exact("The Eiffel Tower.", "eiffel tower")
    assert contained("It stands in Paris, France.", "Paris")
    assert not contained("Comparisons", "Paris")
