"""What is known of a prompt becomes cuts and file names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.tiers.block_index import Cut
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.prompts import cut_prompt, describe_prompt

Segments = list[tuple[int, str | None]]


def cuts(segments: Segments, *, tokens: int = 1000, block: int = 10, depth: int | None = None):
    return cut_prompt(segments, prompt_tokens=tokens, block_tokens=block, depth=depth)


def test_a_prompt_without_segments_is_one_run_of_full_blocks():
    assert cuts([], tokens=39) == [Cut(3)]
    assert cuts([], tokens=9) == []


def test_a_document_ends_with_the_block_of_its_last_token_at_the_latest():
    assert cuts([(12, None), (30, "d1"), (45, "d2")], tokens=49) == [
        Cut(1),
        Cut(3, ("d1",)),
        Cut(4, ("d2",)),
    ]


def test_the_question_behind_the_documents_is_the_last_to_be_cut_off():
    assert cuts([(12, None), (30, "d1")], tokens=59) == [Cut(1), Cut(3, ("d1",)), Cut(5)]


def test_a_document_too_short_for_a_block_of_its_own_shares_the_next_ones():
    assert cuts([(12, "d1"), (15, "d2"), (31, "d3")], tokens=39) == [
        Cut(1, ("d1",)),
        Cut(3, ("d2", "d3")),
    ]
    assert cuts([(3, "d1"), (9, "d2")], tokens=9) == []
    assert cuts([(3, "d1"), (9, "d2")], tokens=12) == [Cut(1, ("d1", "d2"))]


def test_what_is_behind_the_prompts_end_is_not_there():
    assert cuts([(12, "d1"), (2000, "d2")], tokens=35) == [Cut(1, ("d1",)), Cut(3, ("d2",))]


def test_only_the_first_documents_are_kept_if_so_asked_however_many_texts_are_between():
    segments: Segments = [(10, None), (20, "d1"), (30, None), (40, "d2"), (50, "d3")]
    whole = cuts(segments)
    assert cuts(segments, depth=2) == [cut for cut in whole if cut.end <= 4]
    assert cuts(segments, depth=1) == [cut for cut in whole if cut.end <= 3]
    assert cuts(segments, depth=9) == whole


documents = st.none() | st.sampled_from("abcdef")
drawn_segments = st.lists(st.tuples(st.integers(0, 120), documents), max_size=8).map(
    lambda drawn: sorted(drawn, key=lambda segment: segment[0])
)


@given(drawn_segments, st.integers(1, 100), st.integers(1, 20), st.none() | st.integers(1, 4))
@settings(max_examples=examples(100))
@pytest.mark.slow
def test_cuts_rise_within_the_prompt_and_name_whoever_has_tokens_in_their_blocks(
    segments: Segments, tokens: int, block: int, depth: int | None
):
    made = cuts(segments, tokens=tokens, block=block, depth=depth)
    ends = [cut.end for cut in made]
    assert ends == sorted(set(ends))
    assert all(0 < end <= tokens // block for end in ends)
    if not segments:
        return
    start = 0
    for cut in made:
        for at in range(start * block, cut.end * block):
            owner = next((d for end, d in segments if end > at), None)
            # It stands on the node of its block, or on an earlier one, with all computed after it.
            told = {name for each in made for name in each.documents if each.end <= cut.end}
            assert owner is None or owner in told
        start = cut.end


def prompt(**changes: Any):
    told: dict[str, Any] = {
        "keys": [b"1", b"2", b"3", b"4"],
        "token_ids": range(45),
        "prompt_tokens": 45,
        "segments": [(10, None), (20, "d1"), (25, "d2"), (32, "d3"), (45, None)],
        "tenant": None,
        "block_tokens": 10,
        "depth": None,
        "naming": PLAIN,
    }
    return describe_prompt(**{**told, **changes})


def test_a_prompt_has_names_and_documents_for_all_that_is_kept():
    made = prompt()
    assert [cut.end for cut in made.cuts] == [1, 2, 3, 4]
    assert made.tokens == 45
    assert list(made.file_names) == PLAIN.files(range(45), None, blocks=4, block_tokens=10)
    marks = [PLAIN.mark(name) for name in ("d1", "d2", "d3")]
    assert [list(each) for each in made.marks] == [[], marks[:1], marks, marks]


def test_a_prompt_off_the_disk_has_no_names():
    for made in (prompt(naming=None), prompt(token_ids=None)):
        assert list(made.file_names) == list(made.marks) == []
        assert [cut.end for cut in made.cuts] == [1, 2, 3, 4]


def test_blocks_without_a_key_are_not_kept():
    made = prompt(keys=[b"1", b"2"])
    assert [cut.end for cut in made.cuts] == [1, 2]
    assert len(made.file_names) == 2
    assert prompt(keys=[]).cuts == []


def test_only_the_first_documents_of_a_prompt_are_kept_if_so_asked():
    made = prompt(depth=1)
    assert [cut.documents for cut in made.cuts] == [(), ("d1",)]
    assert len(made.file_names) == 2
