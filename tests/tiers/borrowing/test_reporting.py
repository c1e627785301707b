"""What is told of a prompt that borrowed: each of its tokens has one source."""

from __future__ import annotations

import pytest

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, plan_borrowing
from ragcache_engine.tiers.borrowing.reporting import report_borrowing

SEGMENTS: list[tuple[int, str | None]] = [(16, None), (48, "a"), (112, "b")]


@pytest.mark.parametrize("question", [0, 1, 9])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_the_last_token_of_a_prompt_is_never_a_borrowed_one(ratio: float, question: int):
    plan = plan_borrowing(
        list(range(112 + question)),
        SEGMENTS,
        contexts={},
        ratio=ratio,
        block_tokens=16,
        context_tokens=4096,
        device_blocks=1000,
    )
    assert isinstance(plan, BorrowPlan)
    told = report_borrowing(plan, {0: Tier.DEVICE, 1: Tier.DEVICE})
    copied = sum(copy.tokens for copy in plan.copies if copy.donor)
    assert told.documents[1].borrowed == copied
    assert told.documents[1].borrowed + told.documents[1].recomputed == 64
