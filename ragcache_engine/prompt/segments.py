"""Find retrieved texts inside a finished prompt, and map them to its tokens.

Pure functions. A prompt is cut so that

- the text before the first document is the system segment,
- a document's segment begins where the one before it ended, so it carries the separator in front of
  it; what follows the last document is the question segment,
- a token that crosses a boundary belongs to the segment it starts in.

A separator goes with the document after it, never the one before: then [S, D1] is the same run of
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
    """Where the documents stand in the prompt: exact matches, in prompt order, none overlapping.

    Longer texts are placed first, so a document that contains another one's text is not torn apart
    by it. A text that stands several times is found each time. Pipelines often trim the ends of a
    text, and some chat templates write what a tool returned as JSON, so where the exact text is
    missing, its trimmed form is looked for, and then that within a JSON string.
    Texts under SHORTEST_TEXT characters are passed over: they fill no block of KV memory, and would
    be found by chance in the question or the template.
    known: spans found before; they stay, and only the gaps between them are searched.
    """
    spans, has_escapes = list(known), "\\" in prompt
    for document in sorted(documents, key=lambda document: -len(document.text)):
        trimmed = document.text.strip()
        if len(trimmed) < SHORTEST_TEXT:
            continue
        for text in _forms(document.text, trimmed, has_escapes):
            if found := list(_occurrences(prompt, text, document.id, spans)):
                spans = sorted(spans + found)
                break
    return tuple(spans)


def _forms(text: str, trimmed: str, has_escapes: bool) -> Iterable[str]:
    """Each form a text may have in a prompt; made only when those before it were not found."""
    yield text
    if trimmed != text:
        yield trimmed
    if has_escapes:
        yield json.dumps(trimmed, ensure_ascii=False)[1:-1]


def _occurrences(prompt: str, text: str, document_id: str, taken: Sequence[Span]) -> Iterable[Span]:
    for gap_start, gap_end in _gaps(len(prompt), taken):
        if gap_end - gap_start < len(text):
            continue
        at = prompt.find(text, gap_start, gap_end)
        while at >= 0:
            yield Span(at, at + len(text), document_id)
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

    spans: as from `find_documents`. Without any, or where the tokenizer gave no offsets, nothing is
    known about the prompt and the result is empty.
    """
    if not spans or not prompt.offsets:
        return ()
    starts = _token_starts(prompt.offsets)
    segments: list[TokenSegment] = []
    at = _add(segments, SegmentKind.SYSTEM, 0, bisect_left(starts, spans[0].start), None)
    for span in spans:
        end = bisect_left(starts, span.end)
        at = _add(segments, SegmentKind.DOCUMENT, at, end, span.document_id)
    _add(segments, SegmentKind.QUESTION, at, len(starts), None)
    return tuple(segments)


def _token_starts(offsets: Sequence[tuple[int, int]]) -> list[int]:
    """First character of each token, never falling.

    Added tokens (begin, end of text) stand for no characters and report (0, 0); those behind the
    first token belong where the token before them ended.
    """
    starts: list[int] = []
    reached = 0
    for start, end in offsets:
        starts.append(max(start, starts[-1] if starts else 0) if end > start else reached)
        reached = max(reached, end)
    return starts


def _add(
    segments: list[TokenSegment], kind: SegmentKind, start: int, end: int, document_id: str | None
) -> int:
    """Append tokens [start, end), unless a longer neighbour swallowed them; return the new end."""
    if end > start:
        segments.append(TokenSegment(kind, start, end, document_id))
        return end
    return start
