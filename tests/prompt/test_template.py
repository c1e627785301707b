"""Templates that are given: what they write, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document, InvalidArgument
from ragcache_engine.prompt import Template, as_render

CATS, DOGS = Document("cats", "Cats {sleep}."), Document("dogs", "Dogs %s bark {question}.")

anything = st.text(max_size=20)


def test_it_writes_the_texts_around_the_documents():
    template = Template("Read {{this}}:\n", "\n--\n", "\nQ: {question}\nA:")
    expected = "Read {this}:\nCats {sleep}.\n--\nDogs %s bark {question}.\nQ: {Why?}\nA:"
    assert template("{Why?}", [CATS, DOGS]) == expected


@pytest.mark.parametrize(
    "text",
    ["{context}|{question}", "{context_str}|{query_str}", "{documents}|{input}"],
)
def test_the_names_of_both_frameworks_are_known(text: str):
    assert Template.from_text(text)("Why?", [CATS, CATS]) == "Cats {sleep}.\n\nCats {sleep}.|Why?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{question}", "one slot for the documents"),
        ("{context}{context}", "one slot for the documents"),
        ("{context}{history}", "found context, history"),
        ("{context!r}", "unknown slot"),
        ("{context} } ", "Single"),
    ],
)
def test_a_text_that_is_no_template_is_refused(text: str, reason: str):
    with pytest.raises(InvalidArgument, match=reason):
        as_render(text)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="function"):
        as_render(7)  # type: ignore[arg-type]


@given(before=anything, between=anything, after=anything, question=anything)
def test_any_text_may_stand_around_the_documents(
    before: str, between: str, after: str, question: str
):
    def doubled(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    template = Template(doubled(before), between, doubled(after) + "{question}")
    expected = f"{before}{CATS.text}{between}{DOGS.text}{after}{question}"
    assert template(question, [CATS, DOGS]) == expected


def test_an_example_is_as_good_as_a_template():
    template = Template("{{Read}}: ", " & ", " Q: {question}?")
    prompt = template("Why sleep", [CATS, DOGS])
    assert Template.from_example(prompt, "Why sleep", [CATS, DOGS]) == template


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("Nothing of them. Why?", "every document"),
        (f"{CATS.text} {DOGS.text} no question", "its question once"),
        (f"{CATS.text} {DOGS.text} Why? Why?", "its question once"),
    ],
)
def test_an_example_that_leaves_doubts_is_refused(prompt: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        Template.from_example(prompt, "Why?", [CATS, DOGS])
