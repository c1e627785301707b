"""What reports are made of: Markdown tables, and medians with quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Write a table and the blank line after it."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the values at 25, 50 and 75%."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def spread(values: Sequence[float], form: str = ".2f", times: float = 1) -> str:
    """Return the median with the quartiles, as in "1.50 (1.25 to 1.75)". times: 1000 for ms."""
    low, middle, high = (format(times * value, form) for value in quartiles(values))
    return f"{middle} ({low} to {high})"
