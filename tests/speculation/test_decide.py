"""Algorithm 2: what every stage of a search leads to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document
from ragcache_engine.speculation.decide import Move, decide, max_prefill_requests

documents = st.lists(st.sampled_from("abc").map(lambda name: Document(name, name)), max_size=3)
numbers = st.integers(0, 5)
A, B = [Document("a", "a")], [Document("b", "b")]


def move(
    running: list[Document] | None, found: list[Document], waiting: int = 0, final: bool = False
) -> Move:
    return decide(running, found, pending_prefills=waiting, max_prefill_requests=2, final=final)


def test_the_first_documents_are_started_on():
    assert move(None, A) is Move.START


def test_the_same_documents_change_nothing():
    assert move(A, A) is Move.KEEP
    assert move(A, A, waiting=5, final=True) is Move.KEEP


def test_other_documents_replace_what_runs():
    assert move(A, B) is Move.START


def test_the_order_of_documents_matters():
    assert move(A + B, B + A) is Move.START


def test_without_room_what_is_wrong_ends_and_nothing_begins():
    assert move(A, B, waiting=2) is Move.CANCEL
    assert move(None, B, waiting=2) is Move.KEEP


def test_final_documents_need_no_room():
    assert move(None, A, waiting=2, final=True) is Move.START


@given(st.none() | documents, documents, numbers, numbers, st.booleans())
def test_only_wrong_work_ends_and_only_known_documents_are_started_on(
    running: list[Document] | None, found: list[Document], pending: int, most: int, final: bool
):
    chosen = decide(
        running, found, pending_prefills=pending, max_prefill_requests=most, final=final
    )
    if running is not None:
        assert (chosen is Move.KEEP) == (running == found)
    if chosen is Move.START:
        assert found
        assert final or pending < most
    if chosen is Move.CANCEL:
        assert running is not None


@given(documents, st.lists(st.tuples(documents, numbers), max_size=8), st.integers(1, 5))
def test_whatever_the_stages_said_in_the_end_only_the_final_documents_run(
    final: list[Document], stages: list[tuple[list[Document], int]], most: int
):
    running: list[Document] | None = None
    for found, pending in [*stages, (final, 0)]:
        chosen = decide(running, found, pending_prefills=pending, max_prefill_requests=most)
        if chosen is not Move.KEEP:
            running = found if chosen is Move.START else None
    assert running == (final or None)


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.integers(0, 10_000))
def test_as_many_prompts_may_wait_as_one_step_computes_and_one_always_may(
    step: int, device: int, prompt: int
):
    most = max_prefill_requests(step, device, prompt)
    assert most >= 1
    assert most == 1 or most * max(1, prompt) <= min(step, device)
