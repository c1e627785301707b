"""Texts that stand in several prompts are found, behind whatever they stand, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_pages import PAGES, WORDS, numbered, page
from thoroughness import examples

from ragcache_engine.corpora import recurring
from ragcache_engine.corpora.recurring import LEAST_CHARACTERS, RecurringTexts, count_equal, trim


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


def test_instructions_at_the_beginning_are_no_document():
    rules = page(300)
    one, other = f"{rules}\n\n{numbered(PAGES[0])}", f"{rules}\n\n{numbered(PAGES[1])}"
    assert added(one, other) == [[], []]


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
    texts.forget("shop")
    assert texts.add("shop", numbered(PAGES[2], PAGES[0])) == []
    assert texts.add("shop", numbered(PAGES[0], PAGES[3])) == [PAGES[0]]


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


@given(st.text("ab", max_size=300), st.text("ab", max_size=300), st.text("ab", max_size=300))
@settings(max_examples=examples(200))
def test_equal_characters_are_counted(beginning: str, one: str, other: str):
    one, other = beginning + one, beginning + other
    upto = count_equal(one, other)
    assert one[:upto] == other[:upto]
    assert upto == min(len(one), len(other)) or one[upto] != other[upto]


@given(st.lists(st.permutations(range(8)).map(lambda order: order[:4]), min_size=2, max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_all_that_is_found_stood_in_two_prompts_and_no_more_than_pages(
    orders: Sequence[Sequence[int]],
):
    prompts = [numbered(*(PAGES[at] for at in order)) for order in orders]
    for place, found in enumerate(added(*prompts)):
        for text in found:
            assert text in prompts[place]
            assert any(text in before for before in prompts[:place])
            assert any(one in text for one in PAGES), "whole pages, alone or several"


def test_numbers_and_labels_around_a_text_are_cut_off():
    assert trim(f"] {PAGES[0]}\n\n[2") == PAGES[0]
    assert trim(f"\n\n[2] {PAGES[0]}\n\nQuestion: Wh") == PAGES[0]
    assert trim("12 34 [") == ""
