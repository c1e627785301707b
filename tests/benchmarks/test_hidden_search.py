"""How much of a search was hidden, on times made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from studies.hidden_search import compare_pairs


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


def test_overlap_is_the_share_of_the_search_that_was_hidden_and_what_that_gained():
    plain = [answer(0.5, search_s=0.1)] * 3
    staged = [answer(ttft, hidden=share) for ttft, share in ((0.4, 0.9), (0.45, 0.5), (0.52, 0.0))]
    found = compare_pairs(staged, plain, 1000)
    assert (found.low, found.hidden, found.high) == pytest.approx((0.25, 0.5, 0.7))
    assert found.gain_s == pytest.approx(0.05)
    assert found.outcomes == {"none": 3}
