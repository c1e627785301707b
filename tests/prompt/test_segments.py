"""Documents are found in the finished prompt, and its tokens are cut where they begin and end."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.prompt.segments import Span, find_documents, token_segments
from ragcache_engine.values import SegmentKind, TokenizedPrompt

SYSTEM, DOCUMENT, QUESTION = SegmentKind.SYSTEM, SegmentKind.DOCUMENT, SegmentKind.QUESTION

CATS = Document("cats", "Cats sleep for most of the day.")
DOGS = Document("dogs", "Dogs bark at the neighbours.")


def found(prompt: str, *documents: Document) -> list[tuple[str, str]]:
    return [
        (span.document_id, prompt[span.start : span.end])
        for span in find_documents(prompt, documents)
    ]


def cut(prompt: str, *documents: Document) -> list[tuple[SegmentKind, str]]:
    """The prompt's segments as text, for a tokenizer that makes a token of every character."""
    characters = [(at, at + 1) for at in range(len(prompt))]
    tokenized = TokenizedPrompt(prompt, range(len(prompt)), characters)
    segments = token_segments(tokenized, find_documents(prompt, documents))
    return [(segment.kind, prompt[segment.start : segment.end]) for segment in segments]


def test_documents_come_in_the_order_of_the_prompt():
    prompt = f"Read:\n{DOGS.text}\n{CATS.text}\nWhy?"
    assert [name for name, _ in found(prompt, CATS, DOGS)] == ["dogs", "cats"]


def test_a_document_that_is_not_there_is_not_found():
    assert found("Nothing was retrieved. Why?", CATS) == []


def test_a_text_is_found_even_if_the_pipeline_trimmed_it():
    padded = Document("cats", f"  {CATS.text}\n\n")
    assert found(f"Read: {CATS.text} Why?", padded) == [("cats", CATS.text)]


def test_a_text_is_found_where_a_chat_template_wrote_it_as_json():
    lines = Document("lines", 'It says "café".\n\nThen it \\ says no more.\n')
    prompt = f"<tool>{json.dumps({'result': lines.text.strip()}, ensure_ascii=False)}</tool> Why?"
    assert found(prompt, CATS, lines) == [
        ("lines", 'It says \\"café\\".\\n\\nThen it \\\\ says no more.')
    ]


def test_a_document_inside_another_one_does_not_tear_it_apart():
    both = Document("both", f"{DOGS.text} {CATS.text} They share a house.")
    assert found(f"Read: {both.text} Why?", CATS, both) == [("both", both.text)]


def test_a_document_that_stands_twice_is_found_twice():
    assert len(found(f"{CATS.text}\n{CATS.text}", CATS)) == 2


def test_documents_of_equal_texts_are_found_once_each_in_their_order():
    twin, third = Document("twin", CATS.text), Document("third", CATS.text)
    prompt = f"{CATS.text}\n{DOGS.text}\n{CATS.text}\n{CATS.text}"
    names = [name for name, _ in found(prompt, twin, DOGS, CATS)]
    assert names == ["twin", "dogs", "cats", "cats"]
    assert [name for name, _ in found(CATS.text, CATS, twin, third)] == ["cats"]


def test_a_document_given_twice_is_one_document():
    assert len(found(f"{CATS.text}\n{CATS.text}", CATS, CATS)) == 2
    assert len(found(CATS.text, CATS, CATS)) == 1


def test_empty_and_tiny_documents_are_passed_over():
    assert found("a Why? a", Document("empty", ""), Document("tiny", "a")) == []


def test_braces_in_a_document_mean_nothing():
    braces = Document("braces", "A dict display: {key: value}, and {0} and {x!r:>{width}}.")
    assert found(f"{{context}} {braces.text}", braces) == [("braces", braces.text)]


def test_a_separator_belongs_to_the_document_after_it():
    prompt = f"Read.\n\n{CATS.text}\n\n{DOGS.text}\n\nWhy?"
    assert cut(prompt, CATS, DOGS) == [
        (SYSTEM, "Read.\n\n"),
        (DOCUMENT, CATS.text),
        (DOCUMENT, f"\n\n{DOGS.text}"),
        (QUESTION, "\n\nWhy?"),
    ]


def test_the_first_document_is_the_same_segment_whatever_follows_it():
    alone = cut(f"Read.\n\n{CATS.text}\n\nWhy?", CATS, DOGS)
    followed = cut(f"Read.\n\n{CATS.text}\n\n{DOGS.text}\n\nWhy?", CATS, DOGS)
    assert alone[:2] == followed[:2]


def test_a_token_across_a_boundary_belongs_to_the_segment_it_starts_in():
    prompt = TokenizedPrompt("abcdef", [1, 2, 3], [(0, 2), (2, 5), (5, 6)])
    system, document, question = token_segments(prompt, [Span(2, 4, "d")])
    assert (system.start, system.end) == (0, 1)
    assert (document.start, document.end) == (1, 2)
    assert (question.start, question.end) == (2, 3)


def test_begin_and_end_tokens_without_characters_stay_at_their_ends():
    prompt = TokenizedPrompt("ab cd", [0, 1, 2, 9], [(0, 0), (0, 2), (2, 5), (0, 0)])
    system, document, question = token_segments(prompt, [Span(2, 5, "d")])
    assert (system.start, system.end) == (0, 2)
    assert (document.start, document.end) == (2, 3)
    assert (question.start, question.end) == (3, 4)


def test_without_offsets_nothing_is_known_of_the_tokens():
    prompt = TokenizedPrompt(CATS.text, [1, 2, 3])
    assert token_segments(prompt, find_documents(CATS.text, [CATS])) == ()


texts = st.text(alphabet="ab é\n{}", min_size=0, max_size=40)


@given(
    documents=st.lists(texts, max_size=5),
    shown=st.lists(st.integers(0, 4), max_size=6),
    around=st.lists(texts, min_size=7, max_size=7),
)
def test_whatever_the_prompt_segments_cover_its_tokens_once_and_in_order(
    documents: list[str], shown: list[int], around: list[str]
):
    known = [Document(str(n), text) for n, text in enumerate(documents)]
    parts = [around[0]]
    for place, n in enumerate(shown):
        parts += [known[n].text if n < len(known) else "", around[place + 1]]
    prompt = "".join(parts)
    spans = find_documents(prompt, known)
    assert all(a.end <= b.start for a, b in pairwise(spans))
    for span in spans:
        text = known[int(span.document_id)].text
        assert prompt[span.start : span.end] in (text, text.strip())
    tokenized = MemoryBackend().tokenize(prompt)
    segments = token_segments(tokenized, spans)
    if segments:
        assert segments[0].start == 0
        assert segments[-1].end == len(tokenized)
        assert all(a.end == b.start for a, b in pairwise(segments))
