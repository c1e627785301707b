"""Texts that stand in several prompts are found, behind whatever they stand, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_pages import PAGES, WORDS, numbered, page
from thoroughness import examples

from ragcache_engine.corpora import recurring
from ragcache_engine.corpora.recurring import (
    LEAST_CHARACTERS,
    RecurringTexts,
    count_equal,
    count_equal_before,
    trim,
)


def added(*prompts: str, texts: RecurringTexts | None = None) -> list[list[str]]:
    texts = texts or RecurringTexts()
    return [texts.add("shop", prompt) for prompt in prompts]


def test_a_text_that_recurs_behind_another_one_is_found_without_its_number():
    first, second = added(numbered(*PAGES[:3]), numbered(PAGES[3], PAGES[2], PAGES[0]))
    assert first == []
    assert second == [PAGES[2], PAGES[0]]


def test_a_prompt_that_goes_on_with_an_earlier_one_has_nothing_that_recurs():
    beginning = numbered(*PAGES[:3])
    turns = [beginning, f"{beginning} Because. {page(200)}"]
    assert added(*turns, f"{turns[1]} And then? {page(200)}") == [[], [], []]


@pytest.mark.parametrize("days", [("", ""), ("Today is Monday.\n", "Today is Friday.\n")])
def test_instructions_near_the_beginning_are_no_document(days: tuple[str, str]):
    rules = page(300)
    prompts = [f"{day}{rules}\n\n{numbered(PAGES[at])}" for at, day in enumerate(days)]
    assert added(*prompts) == [[], []]


def test_a_conversation_that_drops_its_oldest_turns_has_nothing_that_recurs():
    turns = [f"User: {page(90)}\nAssistant: {page(90)}\n" for _ in range(5)]
    assert added("".join(turns[:4]), "".join(turns[1:])) == [[], []]


def test_the_end_of_another_text_is_not_taken_in():
    ends = [f"{PAGES[at]} The same." for at in (0, 1)]
    first, second = (numbered(end, PAGES[2], question=end[:9]) for end in ends)
    assert added(f"{page()}\n{first}", f"{page()}\n{second}")[1] == [PAGES[2]]


def test_short_texts_are_left_where_they_are():
    short = page(30)
    assert len(short) < LEAST_CHARACTERS
    assert added(numbered(short, PAGES[0]), numbered(PAGES[1], short)) == [[], []]


def test_what_is_known_already_is_not_found_again():
    texts = RecurringTexts()
    texts.add("shop", numbered(*PAGES[:3]))
    prompt = numbered(PAGES[2], PAGES[1])
    at = prompt.index(PAGES[2])
    assert texts.add("shop", prompt, [(at, at + len(PAGES[2]))]) == [PAGES[1]]


def test_one_owners_prompts_are_nobody_elses():
    texts = RecurringTexts()
    texts.add("shop", numbered(*PAGES[:3]))
    assert texts.add("press", numbered(PAGES[2], PAGES[0])) == []
    assert texts.add(None, numbered(PAGES[2], PAGES[0])) == []


def test_what_was_forgotten_is_not_found_until_it_recurs_again():
    texts = RecurringTexts()
    texts.add("shop", numbered(*PAGES[:3]))
    texts.forget(lambda owner: owner == "shop")
    assert texts.add("shop", numbered(PAGES[2], PAGES[0])) == []
    assert texts.add("shop", numbered(PAGES[0], PAGES[3])) == [PAGES[0]]
    texts.forget(lambda owner: True)
    assert not texts._anchors, "nor does a hash tell what stood there"


def test_only_so_much_is_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recurring, "MOST_BYTES", 4000)
    texts = RecurringTexts()
    texts.add("shop", numbered(*PAGES[:3]))
    texts.add("shop", numbered(*PAGES[3:7]))
    assert texts.add("shop", numbered(PAGES[2], PAGES[0])) == []


@pytest.mark.parametrize("text", ["a" * 200_000, (PAGES[0] + "\n") * 200, "".join(WORDS) * 12])
def test_prompts_that_are_made_of_repetitions_are_read_once_or_twice(text: str):
    chosen = [*RecurringTexts()._choose(text)]
    assert len(chosen) <= 4 * len(text) // recurring.ONE_IN
    first, second, third = added(text, f"Now: {text}", f"Then: {text}")
    assert first == []
    assert len(second) + len(third) < 40


def test_lines_in_another_order_cost_as_much_as_they_are_long():
    lines = [page(12) for _ in range(1500)]
    compared = 0

    class Counting(str):
        def __getitem__(self, part: Any) -> str:
            nonlocal compared
            text = super().__getitem__(part)
            compared += len(text)
            return text

    texts = RecurringTexts()
    texts.add("shop", Counting("\n".join(lines)))
    again = Counting("\n".join(reversed(lines)))
    texts.add("shop", again)
    assert compared < 8 * len(again)


TEXT = st.text("ab", max_size=300)


@given(TEXT, TEXT, TEXT, TEXT, TEXT, st.integers(0, 400))
@settings(max_examples=examples(300))
def test_equal_characters_are_counted_on_both_sides(
    before: str, other_before: str, middle: str, behind: str, other_behind: str, most: int
):
    one, other = before + middle + behind, other_before + middle + other_behind
    at, place = len(before) + len(middle) // 2, len(other_before) + len(middle) // 2
    ahead = count_equal(one, at, other, place, most)
    back = count_equal_before(one, at, other, place, most)
    assert one[at : at + ahead] == other[place : place + ahead]
    assert one[at - back : at] == other[place - back : place]
    is_end = at + ahead == len(one) or place + ahead == len(other)
    assert ahead == most or is_end or one[at + ahead] != other[place + ahead]
    is_end = at == back or place == back
    assert back == most or is_end or one[at - back - 1] != other[place - back - 1]


@given(st.lists(st.permutations(range(8)).map(lambda order: order[:4]), min_size=2, max_size=8))
@settings(max_examples=examples(40))
def test_all_that_is_found_stood_in_two_prompts_and_no_more_than_pages(
    orders: Sequence[Sequence[int]],
):
    prompts = [numbered(*(PAGES[at] for at in order)) for order in orders]
    for place, found in enumerate(added(*prompts)):
        for text in found:
            assert text in prompts[place]
            assert any(text in before for before in prompts[:place])
            whole = re.split(r"\n\n\[\d\] ", text)
            assert set(whole) <= set(PAGES), "whole pages, alone or several"


def test_numbers_and_labels_around_a_text_are_cut_off():
    assert trim(f"] {PAGES[0]}\n\n[2") == PAGES[0]
    assert trim(f"\n\n[2] {PAGES[0]}\n\nQuestion: Wh") == PAGES[0]
    assert trim(f"e.\n\n[2] {PAGES[0]}\n") == PAGES[0]
    assert trim("12 34 [") == ""
    assert trim("short\n" * 300_000) == "", "in one pass"
