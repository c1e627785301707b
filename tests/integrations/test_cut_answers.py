"""The message of an answer that was cut short says what helps."""

import pytest

from ragcache_integrations.cut_answers import describe_cut_answer

ENDLESS = "\n" * 30


@pytest.mark.parametrize(
    "text",
    [
        ENDLESS,
        "{" + ENDLESS,
        '{"a": "b"' + ENDLESS,
        '{"a": "say \\"b\\"",' + ENDLESS,
        "[1" + ENDLESS,
    ],
)
def test_more_tokens_are_no_advice_where_white_space_has_no_end(text):
    assert "disable_any_whitespace" in describe_cut_answer(text, "Raise it.")


@pytest.mark.parametrize("text", ["", '{"a": "b", ', '{"a": "b' + ENDLESS, '{"a": "b\\"' + ENDLESS])
def test_otherwise_they_are(text):
    assert describe_cut_answer(text, "Raise it.") == "Raise it."
