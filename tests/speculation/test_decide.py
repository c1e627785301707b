"""Algorithm 2: what every stage of a search leads to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document
from ragcache_engine.speculation.decide import (
    Decision,
    decide,
    max_prefill_requests,
    share_replaced,
)

documents = st.lists(st.sampled_from("abc").map(lambda name: Document(name, name)), max_size=3)
numbers = st.integers(0, 5)
A, B = [Document("a", "a")], [Document("b", "b")]


def decision(
    running: list[Document] | None, found: list[Document], waiting: int = 0, final: bool = False
) -> Decision:
    return decide(running, found, pending_prefills=waiting, max_prefill_requests=2, final=final)


def test_the_first_documents_are_started_on():
    assert decision(None, A) is Decision.START


def test_the_same_documents_change_nothing():
    assert decision(A, A) is Decision.KEEP
    assert decision(A, A, waiting=5, final=True) is Decision.KEEP


def test_other_documents_replace_what_runs():
    assert decision(A, B) is Decision.START


def test_the_order_of_documents_matters():
    assert decision(A + B, B + A) is Decision.START


def test_without_room_what_is_wrong_ends_and_nothing_begins():
    assert decision(A, B, waiting=2) is Decision.CANCEL
    assert decision(None, B, waiting=2) is Decision.KEEP


def test_final_documents_need_no_room():
    assert decision(None, A, waiting=2, final=True) is Decision.START


@given(st.none() | documents, documents, numbers, numbers, st.booleans())
def test_only_wrong_work_ends_and_only_known_documents_are_started_on(
    running: list[Document] | None, found: list[Document], pending: int, most: int, final: bool
):
    decided = decide(
        running, found, pending_prefills=pending, max_prefill_requests=most, final=final
    )
    if running is not None and decided is Decision.KEEP:
        assert found[: len(running)] == running
    if running is not None and running == found:
        assert decided is Decision.KEEP
    if decided is Decision.START:
        assert found
        assert final or pending < most
    if decided is Decision.CANCEL:
        assert running is not None


@given(documents, st.lists(st.tuples(documents, numbers), max_size=8), st.integers(1, 5))
@pytest.mark.slow
def test_whatever_the_stages_said_in_the_end_only_the_final_documents_run(
    final: list[Document], stages: list[tuple[list[Document], int]], most: int
):
    running: list[Document] | None = None
    for found, pending in [*stages, (final, 0)]:
        decided = decide(running, found, pending_prefills=pending, max_prefill_requests=most)
        if decided is not Decision.KEEP:
            running = found if decided is Decision.START else None
    assert running == (final or None)


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.integers(0, 10_000))
def test_as_many_prompts_may_wait_as_one_step_computes_and_one_always_may(
    step: int, device: int, prompt: int
):
    most = max_prefill_requests(step, device, prompt)
    assert most >= 1
    assert most == 1 or most * max(1, prompt) <= min(step, device)


def test_without_room_a_start_on_the_first_documents_goes_on():
    assert decision(A, A + B, waiting=2) is Decision.KEEP
    assert decision(A, B + A, waiting=2) is Decision.CANCEL
    assert decision(A, A + B) is Decision.START


def test_the_share_that_the_next_stage_does_not_begin_with_is_replaced():
    assert share_replaced(A + B, A + B + A) == 0.0
    assert share_replaced(A + B, A) == 0.5
    assert share_replaced(A + B, B) == 1.0
    assert share_replaced([], B) == 0.0
