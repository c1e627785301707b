"""The section on where RAGCache was not better than a baseline."""

from __future__ import annotations

from collections.abc import Iterator

from comparing.comparisons import Comparison, compare_all
from comparing.record import RunRecord


def not_better(record: RunRecord) -> Iterator[str]:
    """List every comparison in which RAGCache was worse, or no better."""
    seen = compare_all(record.seen.plays)
    if not seen:
        return
    worse = [one for one in seen if one.is_worse]
    even = [one for one in seen if not one.is_worse and not one.is_better]
    yield "## What was not better"
    yield ""
    if worse:
        yield "Worse by more than the noise:"
        yield ""
        yield from (_line(record, one) for one in worse)
        yield ""
        yield (
            f"A range leaves out 5% at its lower end: among {len(seen)} comparisons of equals, about "
            f"{len(seen) * 0.05:.1f} would stand here by chance."
        )
        yield ""
    else:
        yield "Nothing was worse than a baseline by more than the noise."
        yield ""
    if even:
        yield "No better, within the noise:"
        yield ""
        yield from (_line(record, one) for one in even)
        yield ""


def _line(record: RunRecord, one: Comparison) -> str:
    part, trace, load = one.point
    return f"- {part}: {trace}, {load}, against {record.name_of(one.baseline)}: {one.ratio}"
