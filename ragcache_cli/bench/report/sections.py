"""Puts the sections of a report in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ragcache_cli.bench.record import RunRecord
from ragcache_cli.bench.report.answer_checks import answers
from ragcache_cli.bench.report.any_position import any_position
from ragcache_cli.bench.report.costs import costs
from ragcache_cli.bench.report.run_description import head, method, traces
from ragcache_cli.bench.report.shortfalls import not_better
from ragcache_cli.bench.report.system_tables import ablations, main_part, sweeps, throughputs

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


def compose_report(record: RunRecord, sections: Sequence[Section] = SECTIONS) -> str:
    """Write the whole report as Markdown."""
    return "\n".join(line for section in sections for line in section(record)) + "\n"
