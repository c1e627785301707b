"""A prompt borrows at once only where that computes fewer tokens than its exact answer."""

from __future__ import annotations

from itertools import count

import pytest

from ragcache_engine.tiers.borrowing.exact_or_borrow import reason_to_answer_exactly
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, Room, WhyExact, plan_borrowing

BLOCK = 4
TOKENS = list(range(100))
SEGMENTS = [(8, None), (32, "a"), (56, "b"), (80, "c")]
PROMPT = [b"prompt %d" % number for number in range(25)]


def planned(ratio: float = 0.0) -> BorrowPlan:
    plan = plan_borrowing(
        TOKENS,
        SEGMENTS,
        Room(BLOCK, 1000, 1000),
        contexts={},
        ratio=ratio,
    )
    assert isinstance(plan, BorrowPlan)
    return plan


def keys_of(plan: BorrowPlan) -> list[list[bytes]]:
    numbers = count()
    return [
        [b"donor %d" % next(numbers) for _ in range(len(donor.token_ids) // BLOCK)]
        for donor in plan.donors
    ]


def why_exact(plan: BorrowPlan, donors: list[list[bytes]], held: set[bytes]) -> WhyExact | None:
    return reason_to_answer_exactly(
        plan, donors, PROMPT, len(TOKENS), block_tokens=BLOCK, holds=held.__contains__
    )


def test_with_nothing_cached_the_donors_cost_more():
    plan = planned()
    assert why_exact(plan, keys_of(plan), set()) is WhyExact.NOT_PREPARED


def test_with_all_donors_cached_borrowing_computes_less():
    plan = planned()
    donors = keys_of(plan)
    held = {key for keys in donors for key in keys}
    assert why_exact(plan, donors, held) is None


def test_a_prompt_whose_own_tensors_are_cached_has_nothing_to_prepare():
    donors = keys_of(planned())
    held = {key for keys in donors for key in keys} | set(PROMPT[:20])
    assert why_exact(planned(1.0), donors, held) is WhyExact.CACHED
    assert why_exact(planned(1.0), donors, held - set(donors[0])) is WhyExact.NOT_PREPARED


@pytest.mark.parametrize(("missing", "why"), [(1, None), (2, None), (3, WhyExact.NOT_PREPARED)])
def test_a_missing_donor_may_be_computed_on_the_way(missing: int, why: WhyExact | None):
    plan = planned()
    donors = keys_of(plan)
    held = {key for keys in donors[missing:] for key in keys}
    assert why_exact(plan, donors, held) is why


def test_what_the_prompt_finds_in_its_own_place_speaks_for_the_exact_answer():
    plan = planned()
    donors = keys_of(plan)
    held = {key for keys in donors[1:] for key in keys}
    assert why_exact(plan, donors, held) is None
    assert why_exact(plan, donors, held | set(PROMPT[:20])) is WhyExact.NOT_PREPARED


def test_only_cached_blocks_without_a_gap_count_for_the_exact_answer():
    plan = planned()
    donors = keys_of(plan)
    held = {key for keys in donors[1:] for key in keys} | set(PROMPT[1:])
    assert why_exact(plan, donors, held) is None


def test_a_donor_that_two_documents_share_is_computed_once():
    plan = planned()
    donors = keys_of(plan)
    shared = [donors[0], donors[1], donors[1]]
    held = set(donors[0])
    assert why_exact(plan, shared, held) is None
