"""Quality of answers over several questions."""

from __future__ import annotations

from studies.quality import grade


def test_quality_takes_the_best_accepted_answer_and_passes_over_unknown_ones():
    found = grade(["Paris", "no idea", "x"], [("London", "paris"), ("Rome",), ()])
    assert found is not None
    assert (found.questions, found.exact, found.contained) == (2, 0.5, 0.5)
    assert grade(["x"], [()]) is None
