"""The section on how many answers differ between systems."""

from __future__ import annotations

from collections.abc import Iterator

from comparing.figures import Differing, differing_answers
from comparing.record import RunRecord
from comparing.report.markdown import table


def answers(record: RunRecord) -> Iterator[str]:
    """Count differing answers: those asked in float32, and those of the plays."""
    counts = differing_answers(record.seen.plays, record.systems)
    if not counts and not record.float32:
        return
    yield "## Answers"
    yield ""
    if record.float32:
        yield "In float32, greedy, answers that are not the same to the character:"
        yield ""
        yield from table(
            ("systems", "differing"),
            (_cells(record, one) for one in record.float32),
        )
    if counts:
        yield (
            f"In the plays above ({record.sizes.dtype}), where vLLM differs from itself once prompts are "
            "batched or cut otherwise:"
        )
        yield ""
        yield from table(
            ("systems", "differing"),
            (_cells(record, one) for one in counts),
        )
        played = {play.system for play in record.seen.plays}
        exempt = [
            one.name for key, one in record.systems.items() if key in played and one.is_approximate
        ]
        if exempt:
            yield f"Approximate answers are not among them: those of {' and of '.join(exempt)}."
            yield ""


def _cells(record: RunRecord, one: Differing) -> tuple[str, str]:
    names = f"{record.name_of(one.left)} / {record.name_of(one.right)}"
    return names, f"{one.differing} of {one.asked}"
