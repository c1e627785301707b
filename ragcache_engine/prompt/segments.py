"""Find retrieved texts inside a finished prompt, and cut its tokens into segments.

Pure functions. A prompt is cut so that

- the text before the first document is the system segment,
- a document's segment begins where the segment before it ended, so it includes the separator in front
  of the document; the text after the last document is the question segment,
- a token that crosses a boundary belongs to the segment that it starts in.

A separator belongs to the document after it, never to the one before it. So [S, D1] is the same run of
tokens whether D1 is the last document of the prompt or not, and its tensors can be shared.
Source: RAGCache, §5.1 (knowledge tree over document sequences).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ragcache_engine.values import Document, SegmentKind, TokenizedPrompt, TokenSegment

SHORTEST_TEXT = 16
"""The shortest document text to look for, in characters."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A document found at the characters [start, end) of a prompt."""

    start: int
    end: int
    document_id: str

    def __len__(self) -> int:
        return self.end - self.start


def find_documents(
    prompt: str, documents: Iterable[Document], known: Sequence[Span] = ()
) -> tuple[Span, ...]:
    """Find the documents in the prompt: exact matches, in prompt order, without overlaps.

    Longer texts are searched first, so that a document which contains another one's text stays whole.
    A text that stands in the prompt several times is found each time. If several documents have this
    text, each of them is found once, in their order, and the last of them wherever else it stands.
    Chains often trim the ends of a text, and some chat templates write what a tool returned as JSON. So
    where the exact text is missing, its trimmed form is searched, and then the trimmed form as written in
    a JSON string.
    Texts under SHORTEST_TEXT characters are skipped: they fill no block of KV memory, and would be
    found by chance in the question or the template.
    known: spans found before. They are part of the result, and only the gaps between them are searched.
    """
    spans, has_escapes = list(known), "\\" in prompt
    ids_of: dict[str, dict[str, None]] = {}  # by text
    for document in documents:
        ids_of.setdefault(document.text, {})[document.id] = None
    for whole in sorted(ids_of, key=len, reverse=True):
        trimmed, ids = whole.strip(), list(ids_of[whole])
        if len(trimmed) < SHORTEST_TEXT:
            continue
        for text in _forms(whole, trimmed, has_escapes):
            if starts := list(find_text(prompt, text, spans)):
                ids += ids[-1:] * (len(starts) - len(ids))
                found = zip(starts, ids, strict=False)
                spans = sorted(spans + [Span(at, at + len(text), name) for at, name in found])
                break
    return tuple(spans)


def is_too_short(document: Document) -> bool:
    """Return whether `find_documents` skips a document."""
    return len(document.text.strip()) < SHORTEST_TEXT


def _forms(text: str, trimmed: str, has_escapes: bool) -> Iterable[str]:
    """Yield each form that a text may have in a prompt, the likeliest first."""
    yield text
    if trimmed != text:
        yield trimmed
    if has_escapes:
        yield json.dumps(trimmed, ensure_ascii=False)[1:-1]


def find_text(prompt: str, text: str, taken: Sequence[Span]) -> Iterable[int]:
    """Yield where the text stands in the prompt outside the spans, which are in prompt order."""
    for gap_start, gap_end in _gaps(len(prompt), taken):
        if gap_end - gap_start < len(text):
            continue
        at = prompt.find(text, gap_start, gap_end)
        while at >= 0:
            yield at
            at = prompt.find(text, at + len(text), gap_end)


def _gaps(length: int, taken: Sequence[Span]) -> Iterable[tuple[int, int]]:
    at = 0
    for span in taken:
        if span.start > at:
            yield at, span.start
        at = span.end
    if at < length:
        yield at, length


def token_segments(prompt: TokenizedPrompt, spans: Sequence[Span]) -> tuple[TokenSegment, ...]:
    """Cut the prompt's tokens at the documents. The segments cover every token, in order.

    spans: as from `find_documents`. Without spans, or if the tokenizer gave no offsets, the result is
      empty: nothing is known about the prompt.
    """
    if not spans or not prompt.offsets:
        return ()
    starts = _token_starts(prompt.offsets)
    segments: list[TokenSegment] = []
    # A token that reaches into the first document is the document's: the text before it, which all
    # prompts of a chain share, must not depend on the document.
    first = bisect_left(starts, spans[0].start)
    while first and prompt.offsets[first - 1][1] > spans[0].start:
        first -= 1
    at = _add(segments, SegmentKind.SYSTEM, 0, first, None)
    for span in spans:
        end = bisect_left(starts, span.end)
        text_start = min(max(at, bisect_left(starts, span.start)), max(at, end - 1))
        at = _add(segments, SegmentKind.DOCUMENT, at, end, span.document_id, text_start)
    _add(segments, SegmentKind.QUESTION, at, len(starts), None)
    return tuple(segments)


def _token_starts(offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return the first character of each token. The numbers never fall.

    Added tokens (begin of text, end of text) stand for no characters and have the offsets (0, 0). After
    the first token, such a token is placed where the token before it ended.
    """
    starts: list[int] = []
    reached = 0
    for start, end in offsets:
        starts.append(max(start, starts[-1] if starts else 0) if end > start else reached)
        reached = max(reached, end)
    return starts


def _add(
    segments: list[TokenSegment],
    kind: SegmentKind,
    start: int,
    end: int,
    document_id: str | None,
    text_start: int | None = None,
) -> int:
    """Append a segment of the tokens [start, end) unless that is empty; return where it ends."""
    if end > start:
        segments.append(TokenSegment(kind, start, end, document_id, text_start))
        return end
    return start
