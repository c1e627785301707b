"""benchmarks/overhead.py: where the time of a cached request goes, and what is ours of it."""

from __future__ import annotations

import pytest

pytest.importorskip("langchain_core")

from comparing.systems import FULL, LRU, System
from overhead import STAGES, WHOLE, Marks, Side, differences, report


def side(system: System, *wholes: float) -> Side:
    took = [
        Marks(0.0, whole / 10, whole / 5, whole / 4, whole / 2, whole).stages() for whole in wholes
    ]
    return Side(system, running=None, took=took)  # type: ignore[arg-type]


def test_the_stages_add_up_to_the_first_piece():
    stages = Marks(1.0, 1.2, 1.3, 1.35, 1.9, 2.0).stages()
    assert list(stages) == [*STAGES, WHOLE]
    assert sum(stages[stage] for stage in STAGES) == pytest.approx(stages[WHOLE]) == 1.0


def test_what_is_added_is_taken_from_pairs():
    theirs, ours = side(LRU, 10.0, 20.0), side(FULL, 11.0, 22.0)
    assert [one[WHOLE] for one in differences([theirs, ours])] == pytest.approx([1.0, 2.0])


def test_the_report_has_a_row_for_each_stage():
    text = report([side(LRU, 1.0, 2.0, 3.0), side(FULL, 1.0, 2.0, 3.0)])
    assert "3 pairs of requests" in text
    for stage in (*STAGES, WHOLE):
        assert f"| {stage} | " in text
