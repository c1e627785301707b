"""Cut texts into passages, which are embedded, retrieved and put into a prompt as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PASSAGE_TOKENS = 400
"""Tokens of a passage: enough to answer from, and few enough for three in a small model's prompt."""
SHORTEST_TAIL = 8
"""A rest of fewer than a passage's tokens / SHORTEST_TAIL joins the passage before it."""

CountTokens = Callable[[str], int]

_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a source. id: the same as long as the source does not change."""

    id: str
    source: str
    title: str
    text: str

    @property
    def shown(self) -> str:
        """The text that is embedded, and that prompts contain character by character."""
        return f"{self.title}\n\n{self.text}"


def cut(
    source: str,
    title: str,
    text: str,
    count_tokens: CountTokens,
    most_tokens: int = PASSAGE_TOKENS,
    first_number: int = 0,
) -> list[Passage]:
    """Cut a text into passages in order, each of at most about `most_tokens`; none for a blank text.

    Cuts fall between paragraphs. A paragraph that is too long is cut between lines, and a line that is
    too long between words. first_number: the number of the first passage, for its id.
    """
    pieces = _pieces(text, count_tokens, most_tokens)
    return [
        Passage(f"{source}:{number}", source, title, piece)
        for number, piece in enumerate(pieces, first_number)
    ]


def paragraphs(text: str) -> list[str]:
    """Split a text at blank lines. The indentation of a first line stays, as it may be code."""
    parts = (part.rstrip().strip("\n") for part in _BLANK_LINES.split(text))
    return [part for part in parts if part.strip()]


def _pieces(text: str, count_tokens: CountTokens, most: int) -> list[str]:
    filled: list[tuple[str, int]] = []
    for part, tokens in _small_enough(text, count_tokens, most):
        if filled and filled[-1][1] + tokens <= most:
            before, size = filled[-1]
            filled[-1] = (f"{before}\n\n{part}", size + tokens)
        else:
            filled.append((part, tokens))
    if len(filled) > 1 and filled[-1][1] < most // SHORTEST_TAIL:
        (before, size), (tail, tokens) = filled[-2:]
        filled[-2:] = [(f"{before}\n\n{tail}", size + tokens)]
    return [piece.strip() for piece, _ in filled]


def _small_enough(text: str, count_tokens: CountTokens, most: int) -> Iterator[tuple[str, int]]:
    for paragraph in paragraphs(text):
        tokens = count_tokens(paragraph)
        if tokens <= most:
            yield paragraph, tokens
            continue
        for line_group in _grouped(paragraph.split("\n"), "\n", count_tokens, most):
            tokens = count_tokens(line_group)
            if tokens <= most:
                yield line_group, tokens
                continue
            for words in _grouped(line_group.split(" "), " ", count_tokens, most):
                yield words, count_tokens(words)


def _grouped(parts: list[str], joint: str, count_tokens: CountTokens, most: int) -> Iterator[str]:
    """Join neighbours while they fit. A part that is too long stands alone."""
    group: list[str] = []
    size = 0
    for part in parts:
        tokens = count_tokens(part)
        if group and size + tokens > most:
            yield joint.join(group)
            group, size = [], 0
        group.append(part)
        size += tokens
    if group:
        yield joint.join(group)
