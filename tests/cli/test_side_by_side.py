"""What the demo shows while it runs: columns on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ragcache_cli.measurements import Asked, PassageSource
from ragcache_cli.side_by_side import short_name, show_question, source_words
from ragcache_engine import CachedTokens

NAMES = ["stock", "exact"]
PASSAGES = (
    PassageSource("Python topics#with:1", 170, CachedTokens(host=160)),
    PassageSource("Python topics#try:0", 90),
)
ANSWER = Asked("Why?", "prompt", "Because it\nis so.", 0.25, 300, CachedTokens(host=160))
TOLD = Asked(
    "Why?", "prompt", "Because it\nis so.", 0.25, 300, CachedTokens(host=160), passages=PASSAGES
)


def shown(console: Console) -> str:
    with show_question("1/1 Why?", NAMES, console) as question:
        question.say("exact", "Because")
        question.say("exact", " it\nis so.")
        question.ended("exact", TOLD)
        question.ended("stock", ANSWER)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PassageSource("a", 90), "0/90 computed"),
        (PassageSource("a", 90, CachedTokens(device=64)), "64/90 device"),
        (PassageSource("a", 90, CachedTokens(host=32, disk=32)), "64/90 host+disk"),
        (PassageSource("a", 90, borrowed=80, recomputed=9, tier="host"), "80/90 borrowed, host"),
        (PassageSource("a", 90, borrowed=80), "80/90 borrowed, computed now"),
    ],
)
def test_a_passage_says_how_many_of_its_tokens_came_from_where(source, words):
    assert source_words(source) == words


def test_a_passage_is_called_by_the_end_of_its_id():
    assert short_name("Python 3.11 topics#with:1") == "with:1"
    assert short_name("notes.md:3") == "notes.md:3"


def test_without_a_terminal_each_answer_is_a_line_and_nothing_is_drawn_twice():
    text = shown(Console(file=io.StringIO(), width=100))
    assert text.splitlines() == [
        "1/1 Why?",
        "  exact   0.25 s  Because it is so.",
        "                  [160 of 300 tokens reused]",
        "                  [with:1 160/170 host; try:0 0/90 computed]",
        "  stock   0.25 s  Because it is so.",
        "                  [160 of 300 tokens reused]",
    ]


def test_on_a_terminal_the_answers_stand_beside_each_other():
    text = shown(Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None))
    last = text[text.rindex("1/1 Why?") :]
    assert any("stock" in line and "exact" in line for line in last.splitlines())
    assert last.count("first token 0.25 s") == 2
    assert "with:1 160/170 host" in last
    assert "Because" in text[: text.rindex("1/1 Why?")], "it was drawn while it arrived"


def test_a_terminal_too_narrow_for_columns_has_lines():
    text = shown(Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None))
    assert text.count("1/1 Why?") == 1
