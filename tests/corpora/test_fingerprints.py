"""Registered texts are found wherever they stand whole, and nowhere else."""

from __future__ import annotations

import json
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from thoroughness import examples

from ragcache_engine.corpora import fingerprints
from ragcache_engine.corpora.document import digest_of
from ragcache_engine.corpora.fingerprints import WINDOW, FingerprintIndex

TIDES = 'The moon pulls the oceans, and "the tides" follow it,\ntwice a day — by the clock.'
SALT = "Rivers carry salt into the sea, and the sun takes the water away again."


@pytest.fixture
def index() -> FingerprintIndex[str]:
    index: FingerprintIndex[str] = FingerprintIndex()
    index.add("tides", TIDES)
    index.add("salt", SALT)
    return index


def found_in(index: FingerprintIndex[str], prompt: str) -> list[tuple[str, str]]:
    """Return each found text with its first name."""
    return [(one.name, prompt[one.start : one.end]) for one in index.find(prompt)]


def test_texts_are_found_in_the_order_of_the_prompt(index):
    prompt = f"Context:\n1. {SALT}\n2. {TIDES}\n\nWhy is the sea salty?"
    assert found_in(index, prompt) == [("salt", SALT), ("tides", TIDES)]


@pytest.mark.parametrize("around", ["{}", "'{}'", "<doc>{}</doc>", "> {}", "{0}{0}"])
def test_it_does_not_matter_what_stands_around_a_text(index, around):
    prompt = around.format(SALT)
    assert found_in(index, prompt) == [("salt", SALT)] * prompt.count(SALT)


def test_white_space_at_the_ends_of_a_registered_text_need_not_be_in_the_prompt():
    index: FingerprintIndex[str] = FingerprintIndex()
    index.add("salt", f"\n  {SALT}\n\n")
    assert found_in(index, f"Context: {SALT}") == [("salt", SALT)]


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_is_found_as_it_is_written_in_json(index, ascii_only):
    prompt = json.dumps({"results": [TIDES]}, ensure_ascii=ascii_only)
    written = json.dumps(TIDES, ensure_ascii=ascii_only)[1:-1]
    assert found_in(index, prompt) == [("tides", written)]


@pytest.mark.parametrize("at", [0, 1, 20, 40, len(SALT) - 1])
def test_a_text_in_which_a_character_has_changed_is_not_found(index, at):
    changed = SALT[:at] + "#" + SALT[at + 1 :]
    assert found_in(index, f"Context: {changed}") == []


def test_a_text_in_which_a_character_is_missing_is_not_found(index):
    assert found_in(index, f"Context: {SALT[:30]}{SALT[31:]} {SALT[1:]} {SALT[:-1]}") == []


def test_a_text_that_contains_another_one_stays_whole(index):
    index.add("sea", f"About the sea. {SALT} So it is.")
    prompt = f"About the sea. {SALT} So it is. And again: {SALT}"
    assert [name for name, _ in found_in(index, prompt)] == ["sea", "salt"]


def test_texts_of_one_beginning_and_end_are_told_apart_by_a_word_in_between():
    index: FingerprintIndex[int] = FingerprintIndex()
    texts = [f"{'All rights reserved. ' * 9}Item {n}. {'Terms apply. ' * 9}" for n in range(500)]
    for number, text in enumerate(texts):
        index.add(number, text)
    prompt = "\n".join(texts[at] for at in (7, 321, 499))
    assert [one.name for one in index.find(prompt)] == [7, 321, 499]


def test_of_one_text_under_several_names_each_is_found_in_turn(index):
    index.add("more salt", SALT)
    for times, names in ((1, ["salt"]), (3, ["salt", "more salt", "more salt"])):
        assert [one.name for one in index.find(f"{SALT}\n" * times)] == names


def test_a_removed_text_is_found_no_more_and_others_with_it_are(index):
    digests = index.add("more salt", SALT)
    index.remove("more salt", digests)
    assert found_in(index, SALT) == [("salt", SALT)]
    index.remove("salt", digests)
    assert found_in(index, SALT + TIDES) == [("tides", TIDES)]


def test_a_short_text_is_not_found(index):
    short = "x" * (WINDOW - 1)
    assert index.add("short", short) == []
    assert index.find(f"{short} {short}") == []


def test_the_filter_is_made_anew_after_many_removals(index, monkeypatch):
    monkeypatch.setattr(fingerprints, "MOST_STALE", 3)
    for number in range(10):
        index.remove(
            str(number), index.add(str(number), f"{number} is a number, and no more than it is")
        )
    assert found_in(index, f"{SALT} {TIDES}") == [("salt", SALT), ("tides", TIDES)]


def test_colliding_hashes_decide_nothing(index, monkeypatch):
    monkeypatch.setattr(fingerprints.Powers, "parts", lambda self, sums, starts, ends: starts * 0)
    collided: FingerprintIndex[str] = FingerprintIndex()
    collided.add("salt", SALT)
    other = SALT[:40] + "#" * (len(SALT) - 40)
    assert found_in(collided, f"{other} {SALT}") == [("salt", SALT)]


def test_texts_that_do_not_fit_into_a_prompt_cost_no_more_than_its_length(index, monkeypatch):
    for length in range(5_000, 5_200):
        index.add(f"{length}", "a" * length)
    looked_up = 0
    original = dict(index._by_anchor)

    class Counting(dict):
        def get(self, *wanted):
            nonlocal looked_up
            looked_up += 1
            return original.get(*wanted)

    index._by_anchor = Counting()
    assert index.find("a" * 4_999) == []
    assert looked_up <= 4_999 // 4 + 1


def test_a_prompt_of_repetitions_costs_no_more_than_its_length(index, monkeypatch):
    digested = 0

    def count_characters(text: str) -> bytes:
        nonlocal digested
        digested += len(text)
        return digest_of(text)

    for length in range(WINDOW, 2_000):
        index.add(f"{length}", "a" * length)
    monkeypatch.setattr(fingerprints, "digest_of", count_characters)
    prompt = "a" * 50_000
    sums = index._powers.sums(prompt)
    assert len(index._places(sums, most=len(prompt) // 4)) <= len(prompt) // 4
    index.find(prompt)
    assert digested <= fingerprints.DIGESTED * len(prompt)


TEXTS = st.text("ab \n", max_size=60) | st.text(
    st.characters(exclude_characters="xyz"), max_size=60
)


@given(st.lists(TEXTS, min_size=1, max_size=6, unique_by=str.strip), st.data())
def test_each_text_of_a_prompt_is_found_where_it_stands(texts, data):
    index: FingerprintIndex[int] = FingerprintIndex()
    for number, text in enumerate(texts):
        index.add(number, text)
    prompt, expected = "", []
    for text in data.draw(st.lists(st.sampled_from(texts), max_size=5)):
        prompt += data.draw(st.text("xyz", min_size=1, max_size=40))
        start, prompt = len(prompt), prompt + text.strip()
        if len(prompt) - start >= WINDOW:
            expected.append((start, len(prompt), text.strip()))
    prompt += data.draw(st.text("xyz", max_size=40))
    found = [(one.start, one.end, texts[one.name].strip()) for one in index.find(prompt)]
    assert found == expected


class AsTextsComeAndGo(RuleBasedStateMachine):
    """Whatever was added and removed, exactly what is there is found."""

    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.index: FingerprintIndex[int] = FingerprintIndex()
        self.there: dict[int, tuple[str, list[bytes]]] = {}
        self.drawn = random.Random(1)

    @rule(target=names, like=st.integers(0, 3))
    def add(self, like: int) -> int:
        name = len(self.there) + self.drawn.randrange(10**9)
        end = "".join(self.drawn.choices(string.ascii_lowercase, k=4))
        text = f"Document of the kind {like}, written for a test and ending in {end}."
        self.there[name] = text, list(self.index.add(name, text))
        return name

    @rule(name=names)
    def remove(self, name: int) -> None:
        if name in self.there:
            _, digests = self.there.pop(name)
            self.index.remove(name, digests)

    @invariant()
    def all_of_them_are_found(self) -> None:
        prompt = " / ".join(text for text, _ in self.there.values())
        found = [one.name for one in self.index.find(prompt)]
        assert sorted(found) == sorted(self.there)
        assert len(self.index) == len(self.there)


TestAsTextsComeAndGo = AsTextsComeAndGo.TestCase
TestAsTextsComeAndGo.settings = settings(max_examples=examples(20), stateful_step_count=25)
