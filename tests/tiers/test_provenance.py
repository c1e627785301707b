"""What is told of a prompt that borrowed: each of its tokens has one source."""

from __future__ import annotations

import pytest

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.plan import BorrowPlan, Lenders, Room, plan_borrowing
from ragcache_engine.tiers.provenance import (
    PromptSources,
    Reason,
    report_borrowing,
    trace_document,
)
from ragcache_engine.values import DocumentReuse

SEGMENTS: list[tuple[int, str | None]] = [(16, None), (48, "a"), (112, "b")]


@pytest.mark.parametrize("question", [0, 1, 9])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_the_last_token_of_a_prompt_is_never_a_borrowed_one(ratio: float, question: int):
    plan = plan_borrowing(
        list(range(112 + question)),
        SEGMENTS,
        Room(16, 4096, 1000),
        contexts={},
        ratio=ratio,
    )
    assert isinstance(plan, BorrowPlan)
    told = report_borrowing(plan, {0: Tier.DEVICE, 1: Tier.DEVICE})
    copied = sum(copy.tokens for copy in plan.copies if copy.donor)
    assert told.documents[1].borrowed == copied
    assert told.documents[1].borrowed + told.documents[1].recomputed == 64


def test_the_text_between_that_is_borrowed_counts_by_the_tier_of_the_document_behind_it():
    tokens = [1] * 16 + [2] * 32 + [9] * 2 + [3] * 64 + [4] * 9
    plan = plan_borrowing(
        tokens,
        [(16, None), (48, "a"), (50, None), (114, "b")],
        Room(16, 4096, 1000),
        contexts={"a": Context("n", [7], 2), "b": Context("n", [7, 9, 9], 3)},
        ratio=0.0,
    )
    assert isinstance(plan, BorrowPlan)
    told = report_borrowing(plan, {0: Tier.DEVICE, 1: Tier.HOST})
    assert [(one.borrowed, one.joined) for one in told.documents] == [(0, 0), (64, 2)]
    assert told.borrowed_by_tier == {"device": 0, "host": 66, "disk": 0}
    assert (told.documents[1].recomputed, told.joined_tokens) == (0, 0)


def test_a_document_that_is_computed_in_its_place_is_neither_borrowed_nor_recomputed():
    plan = plan_borrowing(
        [1] * 16 + [2] * 32 + [3] * 64 + [4] * 40 + [5] * 64 + [6] * 9,
        [*SEGMENTS, (152, "c"), (216, "d")],
        Room(16, 4096, 1000),
        contexts={},
        ratio=0.0,
        lenders=Lenders(computed={2}),
    )
    assert isinstance(plan, BorrowPlan)
    told = report_borrowing(plan, {0: Tier.DEVICE, 1: Tier.DEVICE, 2: Tier.DEVICE})
    assert told.documents[2] == DocumentReuse("c", 40, None)
    assert told.recomputed_tokens == sum(told.documents[at].recomputed for at in (1, 3)) < 10
    assert told.joined_tokens < 10, "nor is it text between documents"


NOTHING_CACHED = PromptSources((), {})


def test_text_that_was_borrowed_with_a_document_counts_as_borrowed():
    reuse = DocumentReuse("a", 60, "host", borrowed=60, joined=2)
    traced = trace_document("a", 100, 162, NOTHING_CACHED, reuse)
    assert (traced.tokens, traced.borrowed, traced.recomputed) == (62, {"host": 62}, 0)
    assert traced.why == ""


def test_text_between_that_was_computed_is_named():
    reuse = DocumentReuse("a", 60, "host", borrowed=50, recomputed=10)
    traced = trace_document("a", 100, 162, NOTHING_CACHED, reuse)
    assert (traced.tokens, traced.borrowed, traced.recomputed) == (62, {"host": 50}, 10)
    assert traced.why == Reason.JOINT
