"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Write a table and the blank line after it."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def counted(count: int, noun: str) -> str:
    """Say how many there are, as in "1 round" or "2 rounds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
