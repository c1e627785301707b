"""The section on reuse at any position: times beside how close answers are."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import TypeAdapter

from comparing.closeness import Closeness
from comparing.figures import Point, plays_at, points, system_figures, ttft_ratio
from comparing.plan import ANYWHERE_PART, CLOSENESS, WARMED_PART
from comparing.record import RunRecord
from comparing.report.markdown import table
from comparing.systems import OFF, ON

PICTURE = "quality.png"


def any_position(record: RunRecord) -> Iterator[str]:
    """Show exact beside approximate reuse: times, tokens by kind, what warming took, closeness."""
    here = [one for one in points(record.seen.plays) if one[0] in (ANYWHERE_PART, WARMED_PART)]
    if not here:
        return
    yield "## Reuse at any position"
    yield ""
    yield (
        'Exact reuse never changes an answer. Approximate reuse (`reuse="anywhere"`) borrows documents\' '
        "tensors from other contexts and computes a share of their tokens anew, the ratio; answers may "
        "then differ. The columns keep the two kinds apart: exact tokens are found behind the same "
        "tokens, borrowed ones in another context. Computed are all others, those computed anew too."
    )
    yield ""
    yield from _warming(record)
    for point in here:
        yield from _times(record, point)
    for study in [name for name in record.studies if name.startswith(CLOSENESS)]:
        yield from _closeness(record, study)
    if read_closeness(record):
        yield f"![ROUGE-L against TTFT]({PICTURE})"
        yield ""


def _warming(record: RunRecord) -> Iterator[str]:
    if not record.seen.warmed:
        return
    yield (
        "Where documents are warmed, RAGCache's systems prefilled all documents that the questions find, "
        "as a user does while indexing; exact ones as the first document of a prompt, approximate ones "
        "also behind their nearest neighbour. Elsewhere nothing was warmed: only earlier questions of "
        "the same stream filled the caches."
    )
    yield ""
    yield from table(
        ("trace", "system", "documents warmed", "seconds", "tokens of the prompts", "computed"),
        (
            (
                one.trace,
                record.name_of(one.system),
                str(one.documents),
                f"{one.seconds:.1f}",
                f"{one.prompt_tokens:,}",
                f"{one.computed_tokens:,}",
            )
            for one in record.seen.warmed
        ),
    )


def _times(record: RunRecord, point: Point) -> Iterator[str]:
    part, trace, load = point
    found = plays_at(record.seen.plays, point)
    made = {key: system_figures(plays) for key, plays in found.items()}
    warmed = "documents warmed" if part == WARMED_PART else "nothing warmed"
    requests = next(iter(made.values())).requests
    yield f"{trace}, {load}, {warmed}, {requests} requests:"
    yield ""
    yield from table(
        (
            "system",
            "answers",
            "TTFT mean, s",
            "p99",
            "vLLM's TTFT over its",
            "exact tokens",
            "borrowed",
            "computed anew of borrowed documents",
            "computed tokens",
            "completed a second",
        ),
        (
            (
                record.name_of(key),
                "approximate" if record.systems[key].is_approximate else "exact",
                f"{row.ttft_median_of_rounds:.3f}",
                f"{row.ttft_p99:.3f}",
                str(ttft_ratio(found[ON.key], found[key])) if ON.key in found else "",
                f"{sum(row.cached):.0%}",
                f"{row.borrowed:.0%}",
                f"{row.recomputed:.0%}",
                f"{row.computed_tokens:.0f}",
                f"{row.completed:.2f}",
            )
            for key, row in made.items()
        ),
    )


def _closeness(record: RunRecord, study: str) -> Iterator[str]:
    seen = read_closeness(record, study)
    if not seen:
        return
    asked, of = next(iter(seen.values())).asked, study.removeprefix(CLOSENESS).lstrip(", ")
    yield (
        f"Answers of the model's own length to {asked} questions{f' of {of}' if of else ''}, compared "
        f"with those of {record.name_of(OFF.key)} ({record.sizes.dtype}). An exact system that differs "
        "shows how much vLLM differs from itself when it batches otherwise."
    )
    yield ""
    yield from table(
        ("system", "answers", "ROUGE-L", "equal answers", "accepted answer contained"),
        (
            (
                record.name_of(key),
                "approximate" if record.systems[key].is_approximate else "exact",
                f"{row.rouge_l:.3f}",
                f"{row.equal} of {row.asked}",
                "" if row.contained is None else f"{row.contained:.1%}",
            )
            for key, row in seen.items()
        ),
    )


def read_closeness(record: RunRecord, study: str = CLOSENESS) -> dict[str, Closeness]:
    """Return how close each system's answers were; empty if the run did not compare them."""
    found = record.studies.get(study) or {}
    return TypeAdapter(dict[str, Closeness]).validate_python(found)
