"""Puts the sections of a report in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from comparing.record import RunRecord
from comparing.report.answer_checks import answers
from comparing.report.any_position import any_position
from comparing.report.costs import costs
from comparing.report.run_description import head, method, traces
from comparing.report.shortfalls import not_better
from comparing.report.system_tables import ablations, main_part, sweeps, throughputs

Section = Callable[[RunRecord], Iterator[str]]
SECTIONS: tuple[Section, ...] = (
    head,
    not_better,
    main_part,
    throughputs,
    sweeps,
    ablations,
    any_position,
    answers,
    costs,
    traces,
    method,
)


def compose_report(record: RunRecord) -> str:
    """Write the whole report as Markdown."""
    return "\n".join(line for section in SECTIONS for line in section(record)) + "\n"
