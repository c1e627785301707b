"""Documents that stand in a prompt twice: which they are, and the prompt without them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.prompt import find_repeats, leave_out_repeats
from ragcache_engine.prompt.repeats import AS_ABOVE
from ragcache_engine.prompt.segments import Span

TIDES, SALT = "The moon pulls the oceans.", "Salt comes from the rivers."


def spans_of(prompt: str, *texts: str) -> tuple[Span, ...]:
    spans, reached = [], 0
    for text in texts:
        start = prompt.index(text, reached)
        reached = start + len(text)
        spans.append(Span(start, reached, text[:4]))
    return tuple(spans)


def test_the_second_and_third_time_of_a_text_are_repeats():
    prompt = f"{TIDES} {SALT} {TIDES} {TIDES}"
    spans = spans_of(prompt, TIDES, SALT, TIDES, TIDES)
    assert find_repeats(prompt, spans) == (spans[2], spans[3])


def test_a_text_under_another_id_is_a_repeat_and_another_text_under_the_id_is_none():
    prompt = f"{TIDES} {SALT} {TIDES}"
    first, second, third = spans_of(prompt, TIDES, SALT, TIDES)
    copy = replace(third, document_id="copy")
    spans = first, replace(second, document_id=first.document_id), copy
    assert find_repeats(prompt, spans) == (copy,)


def test_what_is_left_out_is_named_in_its_place():
    prompt = f"A: {TIDES}\nB: {SALT}\nC: {TIDES}\nWhy?"
    short = leave_out_repeats(prompt, spans_of(prompt, TIDES, SALT, TIDES))
    assert short.text == f"A: {TIDES}\nB: {SALT}\nC: {AS_ABOVE}\nWhy?"
    assert [short.text[one.start : one.end] for one in short.spans] == [TIDES, SALT]


def test_a_prompt_without_repeats_stays_as_it_is():
    prompt = f"{TIDES} {SALT}"
    spans = spans_of(prompt, TIDES, SALT)
    assert leave_out_repeats(prompt, spans) == (prompt, spans, ())


@given(
    st.lists(st.tuples(st.text("ab", max_size=3), st.sampled_from((TIDES, SALT))), max_size=8),
    st.text("ab", max_size=4),
)
def test_each_text_stands_once_and_every_other_character_keeps_its_place(
    parts: list[tuple[str, str]], end: str
):
    prompt = "".join(before + text for before, text in parts) + end
    short = leave_out_repeats(prompt, spans_of(prompt, *(text for _, text in parts)))
    texts = list(dict.fromkeys(text for _, text in parts))
    assert [short.text[one.start : one.end] for one in short.spans] == texts
    assert all(short.text.count(text) == 1 for text in texts)
    left_out = {at for cut in short.cuts for at in range(cut.start, cut.end)}
    for at, character in enumerate(prompt):
        if at not in left_out:
            assert short.text[short.place(at)] == character
    assert short.place(len(prompt)) == len(short.text)
    for cut in short.cuts:
        for at in range(cut.start + 1, cut.end + 1):
            assert short.text[: short.place(at)].endswith(AS_ABOVE)
