"""A packed donor is a short prompt that nobody can send, named after what it is made from."""

from __future__ import annotations

from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.donor import (
    LEAD_TOKENS,
    OUTSIDE_VOCABULARY,
    Donor,
    Packing,
    pack,
)
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, Room, plan_borrowing, plan_making

BLOCK = 16
BFLOAT16, FLOAT32 = Packing(BLOCK, 2), Packing(BLOCK, 4)
SYSTEM, FIRST, SECOND = [1] * 40, [*range(2, 52)], [*range(60, 130)]
BEHIND = {"b": Context("n", tuple(range(200, 260)))}


def planned(
    ratio: float = 0.1, packing: Packing | None = BFLOAT16, **room: int
) -> BorrowPlan | str:
    tokens = SYSTEM + FIRST + [9, 9] + SECOND + [4] * 9
    segments = [(40, None), (90, "a"), (92, None), (162, "b")]
    sizes = {"block_tokens": BLOCK, "context_tokens": 4096, "device_blocks": 1000, **room}
    return plan_borrowing(
        tokens, segments, Room(**sizes), contexts=BEHIND, ratio=ratio, packing=packing
    )


def second_donor(packing: Packing = BFLOAT16) -> Donor:
    made = planned(packing=packing)
    assert isinstance(made, BorrowPlan)
    assert made.donors[0].packs is None, "the prompt's own beginning is exact"
    return made.donors[1]


def test_a_block_holds_the_tokens_of_two_or_four_but_for_one():
    assert (BFLOAT16.tokens, FLOAT32.tokens) == (30, 60)


def test_its_tokens_are_none_of_any_vocabulary_but_for_the_last_which_is_computed():
    donor = second_donor()
    assert len(donor.token_ids) % BLOCK == 1
    assert all(token >= OUTSIDE_VOCABULARY for token in donor.token_ids[:-1])
    assert donor.token_ids[-1] == 0


def test_it_holds_the_document_and_some_tokens_before_it():
    donor = second_donor()
    assert donor.packs is not None
    assert donor.start == LEAD_TOKENS
    assert donor.first == donor.packs.start - LEAD_TOKENS
    assert donor.packed_tokens == len(donor.packs.token_ids) - 1 - donor.first
    assert (len(donor.token_ids) - 1) * 30 // BLOCK >= donor.packed_tokens
    assert len(donor.token_ids) < 0.5 * len(donor.packs.token_ids)


def test_it_is_forgotten_with_its_document_and_with_what_stood_before_it():
    documents = [document for _, document in second_donor().segments]
    assert documents == ["n", "b"]


def test_other_content_another_place_and_another_type_have_other_names():
    donor = second_donor().packs
    assert donor is not None
    others = [
        Donor((*donor.token_ids[:-1], 5), donor.segments, donor.start),
        Donor(donor.token_ids, donor.segments, donor.start - 1),
    ]
    packed = [pack(donor, BFLOAT16), pack(donor, FLOAT32), *(pack(one, BFLOAT16) for one in others)]
    assert len({one.token_ids[:10] for one in packed}) == 4


def test_the_same_is_copied_from_it_as_from_the_donor_that_it_is_made_from():
    for ratio in (0.0, 0.1, 0.5):
        packed, plain = planned(ratio), planned(ratio, None)
        assert isinstance(packed, BorrowPlan)
        assert isinstance(plain, BorrowPlan)
        assert packed.recomputed == plain.recomputed
        first = packed.donors[1].first
        assert [
            one._replace(source=one.source + first * (one.donor > 0)) for one in packed.copies
        ] == [*plain.copies]
        assert packed.digest != plain.digest


def test_text_between_two_documents_is_copied_as_far_as_the_donor_holds_it():
    for gap in (LEAD_TOKENS, LEAD_TOKENS + 1):
        between = [7] * gap
        tokens = SYSTEM + FIRST + between + SECOND + [4] * 9
        segments = [(40, None), (90, "a"), (90 + gap, None), (160 + gap, "b")]
        known = {"a": Context("n", (7,), FIRST[-1]), "b": Context("n", tuple(between), SECOND[-1])}
        made = plan_borrowing(
            tokens, segments, Room(BLOCK, 4096, 1000), contexts=known, ratio=0.0, packing=BFLOAT16
        )
        assert isinstance(made, BorrowPlan)
        assert (90 in made.recomputed) == (gap > LEAD_TOKENS)


def test_a_device_that_cannot_hold_it_beside_what_it_is_made_from_borrows_nothing():
    most = next(
        blocks for blocks in range(200) if isinstance(planned(device_blocks=blocks), BorrowPlan)
    )
    plain = next(
        blocks
        for blocks in range(200)
        if isinstance(planned(packing=None, device_blocks=blocks), BorrowPlan)
    )
    made = planned(device_blocks=most)
    assert isinstance(made, BorrowPlan)
    packs = made.donors[1].packs
    assert packs is not None
    making = (len(packs.token_ids) + len(made.donors[1].token_ids)) // BLOCK + 2
    assert making <= most <= plain


def test_making_one_computes_nothing_and_takes_what_it_is_made_from():
    donor = second_donor()
    making = plan_making(donor)
    assert making.donors == (donor.packs,)
    assert (making.end, making.recomputed) == (len(donor.token_ids) - 1, ())
