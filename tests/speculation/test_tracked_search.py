"""What a search's stages tell: since when its documents were known, and how much it took back."""

from __future__ import annotations

import pytest

from ragcache_engine import Document, SpeculationOutcome
from ragcache_engine.speculation.tracked_search import TrackedSearch

A, B, C, D = (Document(name, name) for name in "abcd")


def search(*stages: tuple[float, list[Document]]) -> TrackedSearch:
    """A search from 0 s on, with what it had found at these times; the last one ends it."""
    made = TrackedSearch(1, "Why?", "chain", None, None, None, 0.0)
    for number, (now_s, documents) in enumerate(stages, 1):
        made.note_stage(now_s, documents, number == len(stages), is_idle=True)
    return made


def test_a_crawler_that_adds_page_to_page_replaces_nothing():
    crawled = search((1.0, [A]), (2.0, [A, B]), (3.0, [A, B, C]), (4.0, [A, B, C]))
    assert crawled.changes == 0.0
    assert crawled.early_s() == pytest.approx((3.0 + 2.0 + 1.0) / 3)


def test_a_stage_that_keeps_the_first_documents_replaces_the_others():
    refined = search((1.0, [A, B, C, D]), (2.0, [A, D, C, B]), (4.0, [A, D, C, B]))
    assert refined.changes == 0.75
    assert refined.early_s() == pytest.approx((3.0 + 2.0 + 2.0 + 2.0) / 4)


def test_a_document_counts_only_behind_those_before_it():
    swapped = search((1.0, [A, B]), (2.0, [B, A]), (3.0, [B, A]))
    assert (swapped.changes, swapped.early_s()) == (1.0, 1.0)


def test_a_search_that_found_nothing_before_its_end_has_no_lead():
    assert search((3.0, [A, B])).early_s() == 0.0
    assert search((1.0, []), (3.0, [A])).early_s() == 0.0
    assert search((1.0, [A]), (3.0, [])).early_s() == 0.0


@pytest.mark.parametrize(
    ("outcome", "wrong", "was_of_use"),
    [
        (SpeculationOutcome.ADOPTED, 1.0, True),
        (SpeculationOutcome.OTHER_DOCUMENTS, 0.1, True),
        (SpeculationOutcome.OTHER_PROMPT, 0.1, True),
        (SpeculationOutcome.OTHER_PROMPT, 1.0, False),
        (SpeculationOutcome.EXPIRED, 0.0, False),
        (SpeculationOutcome.FAILED, 0.0, False),
    ],
)
def test_work_was_of_use_if_it_was_adopted_or_mostly_the_prompts_beginning(
    outcome: SpeculationOutcome, wrong: float, was_of_use: bool
):
    made = search((1.0, [A]))
    made.speculations_started, made.outcome, made.latest_wrong = 3, outcome, wrong
    assert made.was_of_use == was_of_use


def test_where_nothing_was_started_nothing_was_of_use():
    assert not search((1.0, [A])).was_of_use


def test_pages_that_come_one_by_one_are_named_by_the_first_and_counted():
    pages = [Document(str(number), "text") for number in range(400)]
    crawled = search(*[(float(at), pages[:at]) for at in range(1, 401)])
    details = [event.detail for event in crawled._events]
    assert details[-1].startswith("final: 0, 1,")
    assert details[-1].endswith("19 and 380 more")
    assert sum(map(len, details)) < 400 * 100
