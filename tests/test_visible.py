"""What others wrote is shown as what it is."""

from __future__ import annotations

import pytest

from ragcache_engine.errors import BadRequest, KeyRefused
from ragcache_engine.visible import LONGEST_SHOWN, describe_failure, quoted, visible

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
FORGED = "d1\nERROR: all is lost"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CLIPBOARD, r"\x1b]52;c;cm0gLXJmIH4=\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        (FORGED, r"d1\nERROR: all is lost"),
        ("a\rb\x85c\u2028d\u2029e", r"a\rb\x85c\u2028d\u2029e"),
        ("invoice\u202efdp.exe", r"invoice\u202efdp.exe"),
        ("a\u2066b\u2069\u200e\ufeff\U000e0041", r"a\u2066b\u2069\u200e\ufeff\U000e0041"),
        ("half \ud83d", r"half \ud83d"),
    ],
)
def test_what_a_reader_would_not_see_becomes_an_escape(text: str, shown: str):
    assert visible(text) == shown
    assert visible(shown) == shown
    assert shown in quoted(text).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "text", ["Größe: 12\u202f€", "می‌خواهم", "क्‍ष", "👨‍👩‍👧 ❤️", "日本語\u3000です", "a\u00a0b"]
)
def test_what_people_write_stays_as_it_is(text: str):
    assert visible(text) == text


def test_an_answer_keeps_its_lines():
    assert visible("1.\tone\n2.\x1b[5m", keep="\n\t") == "1.\tone\n2.\\x1b[5m"


def test_a_long_text_is_shortened_and_its_beginning_stays():
    assert visible("d" * 99, most=10) == "ddddddd..."
    assert len(quoted("d" * 100_000)) == LONGEST_SHOWN
    assert quoted("d1") == "'d1'"


@pytest.mark.parametrize("kind", [BadRequest, KeyRefused])
def test_an_errors_text_cannot_steer_a_terminal(kind: type[Exception]):
    assert str(kind(f"no such document: {CLIPBOARD}\nAsk again")) == (
        "no such document: \\x1b]52;c;cm0gLXJmIH4=\\x07\nAsk again"
    )


def test_a_failure_is_described_without_lines_of_the_error_itself():
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        described = describe_failure(error)
    assert described.splitlines()[-1] == r"ValueError: d1\nERROR: all is lost"
    assert "raise ValueError" in described
