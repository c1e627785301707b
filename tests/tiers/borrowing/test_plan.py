"""What a prompt borrows: every token behind the exact blocks is copied or recomputed, once."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.plan import (
    MOST_DONOR_TOKENS,
    BorrowPlan,
    Lenders,
    Room,
    WhyExact,
    find_spans,
    plan_borrowing,
)

SYSTEM, QUESTION = [1] * 10, [4] * 6
FIRST, SECOND = [*[2] * 19, 12], [*[3] * 19, 13]


def plan(
    tokens: list[int], segments: list[tuple[int, str | None]], **settings: Any
) -> BorrowPlan | WhyExact:
    """settings: of Room, or of plan_borrowing."""
    room = {"block_tokens": 16, "context_tokens": 4096, "device_blocks": 1000}
    room |= {name: settings.pop(name) for name in room if name in settings}
    usual: dict[str, Any] = {"contexts": {}, "ratio": 0.1}
    return plan_borrowing(tokens, segments, Room(**room), **{**usual, **settings})


def planned(
    tokens: list[int], segments: list[tuple[int, str | None]], **settings: Any
) -> BorrowPlan:
    made = plan(tokens, segments, **settings)
    assert isinstance(made, BorrowPlan)
    return made


TWO = SYSTEM + FIRST + [9] * 2 + SECOND + QUESTION
TWO_SEGMENTS: list[tuple[int, str | None]] = [(10, None), (30, "a"), (32, None), (52, "b")]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, str | None]]]:
    tokens = [1] * draw(st.integers(0, 40))
    segments: list[tuple[int, str | None]] = [(len(tokens), None)] if tokens else []
    for number in range(draw(st.integers(2, 5))):
        tokens += [draw(st.integers(2, 99))] * draw(st.integers(1, 60))
        segments.append((len(tokens), f"d{number}"))
        gap = draw(st.integers(0, 4))
        if gap:
            tokens += [0] * gap
            segments.append((len(tokens), None))
    return tokens + [5] * draw(st.integers(1, 40)), segments


@given(prompts(), st.floats(0, 1), st.frozensets(st.integers(1, 4)))
def test_every_token_behind_the_exact_blocks_is_copied_or_recomputed_once(
    prompt: tuple[list[int], list[tuple[int, str | None]]], ratio: float, computed: frozenset[int]
):
    tokens, segments = prompt
    made = plan(tokens, segments, ratio=ratio, lenders=Lenders(computed=computed))
    if made is WhyExact.SHORT:
        assert len(tokens) < 16
        return
    assert isinstance(made, BorrowPlan)
    copied = [copy.target + at for copy in made.copies for at in range(copy.tokens)]
    assert sorted([*copied, *made.recomputed]) == list(range(made.exact_blocks * 16, made.end))
    assert list(made.recomputed) == sorted(made.recomputed)


@given(prompts(), st.floats(0, 1))
def test_a_copied_token_is_the_same_token_of_the_same_document_in_its_donor(
    prompt: tuple[list[int], list[tuple[int, str | None]]], ratio: float
):
    tokens, segments = prompt
    made = plan(tokens, segments, ratio=ratio)
    if not isinstance(made, BorrowPlan):
        return
    for copy in made.copies:
        donor = made.donors[copy.donor]
        lent = donor.token_ids[copy.source : copy.source + copy.tokens]
        assert list(lent) == tokens[copy.target : copy.target + copy.tokens]


@given(prompts())
def test_a_donor_depends_on_its_document_and_the_system_text_alone(
    prompt: tuple[list[int], list[tuple[int, str | None]]],
):
    tokens, segments = prompt
    made = plan(tokens, segments)
    if not isinstance(made, BorrowPlan):
        return
    system = tokens[: made.documents[0].start]
    for span, donor in zip(made.documents, made.donors, strict=True):
        content = [*system, *tokens[span.start : max(span.start + 1, span.end - 1)]]
        assert list(donor.token_ids[: len(content)]) == content
        assert len(donor.token_ids) == ceil(len(content) / 16) * 16 + 1, "whole blocks and a token"


def test_the_first_share_of_each_borrowed_document_is_recomputed_with_the_text_between():
    made = planned(TWO, TWO_SEGMENTS, ratio=0.1)
    assert made.recomputed == (29, 30, 31, 32, 33), "and the first document's last token"
    assert [tuple(copy) for copy in made.copies] == [(0, 16, 16, 13), (1, 12, 34, 17)]
    assert made.end == 51, "the last document's last token is computed with the question"


def test_a_last_token_that_is_known_is_lent_as_well():
    known = {"a": Context("b", [7], FIRST[-1]), "b": Context("n", [7], SECOND[-1])}
    made = planned(TWO, TWO_SEGMENTS, ratio=0.1, contexts=known)
    assert made.recomputed == (30, 31, 32, 33)
    assert [tuple(copy) for copy in made.copies] == [(0, 16, 16, 14), (1, 13, 34, 18)]
    assert made.end == 52


def test_a_last_token_in_another_form_is_computed():
    known = {"a": Context("b", [7], 77), "b": Context("n", [7], 78)}
    made = planned(TWO, TWO_SEGMENTS, ratio=0.1, contexts=known)
    assert made.recomputed == (29, 30, 31, 32, 33)
    assert made.end == 51
    assert made.donors[1].token_ids[:31] == (*SYSTEM, 7, *SECOND[:-1], 78)


@pytest.mark.parametrize(
    ("before", "ratio", "is_copied"),
    [([7, 9, 9], 0.0, True), ([9, 9], 0.0, True), ([7, 9, 9], 0.1, False), ([9, 7], 0.0, False)],
)
def test_with_ratio_0_the_text_between_is_copied_from_a_donor_that_has_the_same(
    before: list[int], ratio: float, is_copied: bool
):
    known = {"a": Context("n", [7], FIRST[-1]), "b": Context("n", before, SECOND[-1])}
    made = planned(TWO, TWO_SEGMENTS, ratio=ratio, contexts=known)
    if is_copied:
        assert made.recomputed == ()
        assert tuple(made.copies[1]) == (1, made.donors[1].start - 2, 30, 22)
    else:
        assert made.recomputed[:2] == (30, 31)
    assert made.count_copied(30, 32) == (2 if is_copied else 0)


def test_a_document_has_one_donor_whatever_its_last_token_merges_with():
    merged = [*TWO[:51], 77, *QUESTION]  # as a full stop and a line's end do
    assert planned(merged, TWO_SEGMENTS).donors == planned(TWO, TWO_SEGMENTS).donors


def test_with_ratio_1_no_document_behind_the_first_is_copied():
    made = planned(TWO, TWO_SEGMENTS, ratio=1)
    assert made.recomputed == tuple(range(29, 52))
    assert made.end == 52
    assert [copy.donor for copy in made.copies] == [0]


def test_a_document_with_a_context_is_borrowed_from_behind_it():
    made = planned(TWO, TWO_SEGMENTS, contexts={"b": Context("n", [7] * 5)})
    donor = made.donors[1]
    assert list(donor.token_ids[:34]) == [*SYSTEM, *[7] * 5, *SECOND[:-1]]
    assert donor.segments == ((10, None), (15, "n"), (48, "b"))
    assert made.copies[1].source == 17


def test_plans_that_differ_in_anything_have_different_digests():
    digests = {
        planned(TWO, TWO_SEGMENTS).digest,
        planned(TWO, TWO_SEGMENTS, ratio=0.5).digest,
        planned(TWO, TWO_SEGMENTS, contexts={"b": Context("n", [7] * 5)}).digest,
        planned(TWO, [(10, None), (30, "a"), (33, None), (52, "b")]).digest,
    }
    assert len(digests) == 4


def test_what_lies_before_a_position_is_left_out():
    copies, recomputed = planned(TWO, TWO_SEGMENTS).after(33)
    assert recomputed == [33]
    assert [tuple(copy) for copy in copies] == [(1, 12, 34, 17)]
    copies, _ = planned(TWO, TWO_SEGMENTS).after(40)
    assert [tuple(copy) for copy in copies] == [(1, 18, 40, 11)]


@pytest.mark.parametrize(
    ("segments", "settings", "why"),
    [
        ([], {}, WhyExact.FEW_DOCUMENTS),
        ([(10, None), (30, "a")], {}, WhyExact.FEW_DOCUMENTS),
        (TWO_SEGMENTS, {"context_tokens": 32}, WhyExact.TOO_LONG),
        (TWO_SEGMENTS, {"context_tokens": 33}, WhyExact.TOO_LONG),  # of one token's answer, too
        (TWO_SEGMENTS, {"device_blocks": 7}, WhyExact.NO_ROOM),
        (TWO_SEGMENTS, {"device_blocks": 20, "answer_tokens": 400}, WhyExact.NO_ROOM),
        (TWO_SEGMENTS, {"device_blocks": 20, "answer_tokens": None}, WhyExact.NO_ROOM),
        (TWO_SEGMENTS, {"block_tokens": 64}, WhyExact.SHORT),
        (TWO_SEGMENTS, {"least_tokens": 21}, WhyExact.SHORT),
    ],
)
def test_a_prompt_that_cannot_borrow_says_why(
    segments: list[tuple[int, str | None]], settings: dict[str, Any], why: WhyExact
):
    assert plan(TWO, segments, **settings) is why


def test_many_documents_behind_a_long_text_are_answered_exactly_as_planning_takes_too_long():
    long = [1] * 3000
    tokens, segments = list(long), [(len(long), None)]
    for number in range(2 + MOST_DONOR_TOKENS // len(long)):
        tokens += [2 + number] * 20
        segments.append((len(tokens), f"d{number}"))
    room = {"context_tokens": 1 << 20, "device_blocks": 1 << 20}
    assert plan([*tokens, *QUESTION], segments, **room) is WhyExact.MANY
    fewer = segments[:-2]
    assert isinstance(plan([*tokens[: fewer[-1][0]], *QUESTION], fewer, **room), BorrowPlan)


def test_the_last_token_of_a_prompt_is_never_borrowed():
    made = planned(SYSTEM + FIRST + SECOND, [(10, None), (30, "a"), (50, "b")])
    assert made.end == 49
    assert made.copies[-1].target + made.copies[-1].tokens == 49
    assert made.donors[1] == planned(TWO, TWO_SEGMENTS).donors[1], (
        "the donor has the whole document"
    )


def test_segments_behind_the_prompts_end_are_cut():
    spans = find_spans([(3, "a"), (9, "b")], 5)
    assert [tuple(span) for span in spans] == [("a", 0, 3), ("b", 3, 5)]


def test_what_stands_between_two_documents_belongs_to_none_of_them():
    apart = planned(TWO, TWO_SEGMENTS)
    joined = planned(TWO, [(10, None), (30, "a"), (52, "b")], starts=[10, 32])
    assert joined == apart


def test_a_token_that_the_first_document_shares_with_the_text_before_is_in_no_donor_of_another():
    # As in "Context: {context}", where the space and the first word are one token.
    segments: list[tuple[int, str | None]] = [(9, None), (30, "a"), (32, None), (52, "b")]
    donors = []
    for shared in (77, 78):
        tokens = [*TWO[:9], shared, *TWO[10:]]
        made = planned(tokens, segments, starts=[10, 32])
        assert made.system_tokens == 9
        assert made.donors[0].token_ids[9] == shared
        donors.append(made.donors[1])
    assert donors[0] == donors[1]
    assert donors[0].token_ids[:9] == tuple(TWO[:9])
    assert donors[0].start == 9


THREE = TWO[:52] + [9] * 2 + [*[6] * 19, 16] + QUESTION
THREE_SEGMENTS: list[tuple[int, str | None]] = [*TWO_SEGMENTS, (54, None), (74, "c")]


def test_a_document_without_a_donor_is_computed_in_its_place():
    made = planned(THREE, THREE_SEGMENTS, ratio=0.0, lenders=Lenders(computed={1}))
    assert (made.lent, made.computed_in_place) == ((0, 2), ("b",))
    assert set(range(32, 52)) < set(made.recomputed)
    assert [copy.donor for copy in made.copies if copy.target >= 32] == [1]


def test_behind_the_last_donor_everything_is_computed_as_ever():
    made = planned(THREE, THREE_SEGMENTS, ratio=0.0, lenders=Lenders(computed={2}))
    two = planned(TWO, TWO_SEGMENTS, ratio=0.0)
    assert (made.end, made.copies, made.recomputed) == (two.end, two.copies, two.recomputed)
