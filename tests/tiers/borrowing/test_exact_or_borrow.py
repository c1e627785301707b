"""A prompt borrows at once only where that computes fewer tokens than its exact answer."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.exact_or_borrow import (
    plan_what_is_held,
    reason_to_answer_exactly,
)
from ragcache_engine.tiers.borrowing.plan import (
    BorrowPlan,
    Room,
    WhyExact,
    plan_borrowing,
)

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


def plan_held(held: set[bytes]) -> BorrowPlan | WhyExact:
    """Plan the prompt where these keys are held. A donor's key tells its tokens."""
    return plan_what_is_held(
        partial(
            plan_borrowing, TOKENS, SEGMENTS, Room(BLOCK, 1000, 1000), contexts=BEHIND, ratio=0
        ),
        keys_of_donor,
        PROMPT,
        len(TOKENS),
        block_tokens=BLOCK,
        holds=held.__contains__,
    )


def keys_of_donor(donor: Donor) -> list[bytes]:
    tokens = donor.token_ids
    return [repr(tokens[:end]).encode() for end in range(BLOCK, len(tokens), BLOCK)]


BEHIND = {
    name: Context(f"near {name}", tuple(range(at, at + 20)))
    for name, at in (("a", 500), ("b", 600), ("c", 700))
}
DONORS = plan_borrowing(TOKENS, SEGMENTS, Room(BLOCK, 1000, 1000), contexts=BEHIND, ratio=0)
assert isinstance(DONORS, BorrowPlan)
FIRST, OF_B, OF_C = (set(keys_of_donor(donor)) for donor in DONORS.donors)


def test_with_all_donors_held_all_later_documents_are_lent():
    made = plan_held(FIRST | OF_B | OF_C)
    assert isinstance(made, BorrowPlan)
    assert made.lent == (0, 1, 2)


def test_documents_whose_donors_are_missing_are_exact_before_the_first_that_is_borrowed():
    made = plan_held(FIRST | OF_C)
    assert isinstance(made, BorrowPlan)
    assert (made.exact_documents, made.lent) == (2, (1, 2))


def test_a_document_whose_donor_is_missing_is_computed_behind_a_borrowed_one():
    made = plan_held(FIRST | OF_B)
    assert isinstance(made, BorrowPlan)
    assert (made.exact_documents, made.lent) == (1, (0, 1))
    assert len(made.recomputed) + len(TOKENS) - made.end < len(TOKENS) - 32


def test_a_donor_that_costs_no_more_than_its_document_is_computed_at_once():
    of_neighbour = sorted(OF_C, key=len)[:7]
    made = plan_held(FIRST | OF_B | set(of_neighbour))
    assert isinstance(made, BorrowPlan)
    assert 2 in made.lent


def test_without_any_donor_a_prompt_is_exact():
    assert plan_held(FIRST) is WhyExact.NOT_PREPARED
