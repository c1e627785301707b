"""The section on what a system costs besides the time to first token."""

from __future__ import annotations

from collections.abc import Iterator

from comparing.figures import plays_at, points, system_figures
from comparing.record import RunRecord
from comparing.report.markdown import table

MIB = 1 << 20


def costs(record: RunRecord) -> Iterator[str]:
    """Show memory, disk and scheduling of every system in every start."""
    if not record.seen.told:
        return
    yield "## Memory, disk, scheduling"
    yield ""
    rows = []
    for told in record.seen.told:
        scheduled = told.get("scheduled") or 0
        rows.append(
            (
                record.name_of(told["system"]),
                told["part"],
                str(told["start"] + 1),
                f"{told['memory_bytes'] / MIB:,.0f}",
                f"{told['disk_bytes'] / MIB:,.0f}",
                f"{1e3 * told['scheduling_s'] / scheduled:.2f}" if scheduled else "",
            )
        )
    yield from table(
        ("system", "part", "start", "memory, MiB", "disk, MiB", "our scheduling, ms a request"),
        rows,
    )
    idle = [system_figures(plays).idle_cpu for point in points(record.seen.plays)
            for plays in plays_at(record.seen.plays, point).values()]  # fmt: skip
    yield (
        f"The paper: 0.9 ms of scheduling a request. While one system was asked, the other systems "
        f"together took {max(idle):.3f} of a core at most."
    )
    yield ""
