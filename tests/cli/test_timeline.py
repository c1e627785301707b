"""The timeline of a question, as a table and as a picture."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli.timeline import draw, hidden_share, picture_path, show
from ragcache_engine import (
    CachedTokens,
    SpeculationEvent,
    SpeculationOutcome,
    SpeculationReport,
    SpeculationStep,
    Usage,
)
from ragcache_engine.dashboard.lanes import SpeculationSpan, lanes
from ragcache_integrations.answer_facts import plain_timeline, report_of

S = SpeculationStep
ADOPTED = SpeculationReport(
    SpeculationOutcome.ADOPTED,
    (
        SpeculationEvent(0.10, S.STAGE, "a, b"),
        SpeculationEvent(0.11, S.STARTED, "the whole prompt, 900 tokens"),
        SpeculationEvent(0.20, S.STAGE, "a, c"),
        SpeculationEvent(0.21, S.CANCELLED, "other documents"),
        SpeculationEvent(0.22, S.STARTED, "the whole prompt, 800 tokens"),
        SpeculationEvent(0.30, S.STAGE, "a, c"),
        SpeculationEvent(0.40, S.STAGE, "final: a, c"),
        SpeculationEvent(0.42, S.PROMPT),
        SpeculationEvent(0.42, S.ADOPTED),
        SpeculationEvent(0.90, S.FIRST_TOKEN),
    ),
)
PREFILLED = SpeculationReport(
    SpeculationOutcome.PREFILLED,
    (
        SpeculationEvent(0.10, S.STAGE, "a"),
        SpeculationEvent(0.11, S.STARTED, "up to the documents, 900 tokens"),
        SpeculationEvent(0.40, S.STAGE, "final: a"),
        SpeculationEvent(0.42, S.PROMPT),
        SpeculationEvent(0.90, S.FIRST_TOKEN),
    ),
)


def usage_of(report):
    return Usage(900, 5, CachedTokens(), ttft_s=0.9, total_s=1.0, speculation=report)


def test_lanes_tell_search_speculations_and_model_apart():
    seen = lanes(ADOPTED)
    assert seen.stages_s == (0.10, 0.20, 0.30, 0.40)
    assert seen.new_s == (0.10, 0.20)
    assert seen.speculations == (
        SpeculationSpan(0.11, 0.21, "other documents"),
        SpeculationSpan(0.22, 0.42, "adopted"),
    )
    assert (seen.prompt_s, seen.model_s, seen.first_token_s) == (0.42, 0.22, 0.90)


def test_what_was_only_prefilled_is_of_use_and_the_model_begins_with_the_prompt():
    seen = lanes(PREFILLED)
    assert seen.speculations == (SpeculationSpan(0.11, 0.42, "prefilled"),)
    assert seen.speculations[0].was_of_use
    assert seen.model_s == seen.prompt_s


def test_without_a_timeline_there_are_no_lanes():
    seen = lanes(SpeculationReport())
    assert (seen.stages_s, seen.speculations, seen.model_s) == ((), (), None)


def test_search_is_hidden_from_the_beginning_of_the_guess_that_was_adopted():
    assert hidden_share(ADOPTED) == pytest.approx((0.40 - 0.22) / 0.40)
    assert hidden_share(PREFILLED) == 0
    assert hidden_share(SpeculationReport()) == 0


def test_a_timeline_survives_being_made_plain():
    for report in (ADOPTED, PREFILLED, SpeculationReport()):
        assert report_of(report.outcome.value, plain_timeline(report)) == report


def test_the_table_has_a_line_an_event():
    console = Console(width=80, record=True, file=StringIO())
    show(ADOPTED, console)
    lines = console.export_text().splitlines()
    assert len(lines) == len(ADOPTED.timeline) + 1
    assert "0.210 s" in lines[3]
    assert "other documents" in lines[3]
    assert lines[-1].strip() == "speculation: adopted"


@pytest.mark.parametrize("report", [ADOPTED, PREFILLED, SpeculationReport()])
def test_the_picture_is_a_png(report, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "one.png"
    draw("Why? " * 40, usage_of(report), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_question_has_its_own_picture():
    assert picture_path(Path("out"), 2) == Path("out/timeline-2.png")
    assert picture_path(Path("a.png"), 1) == Path("a.png")
    assert picture_path(Path("a.png"), 2) == Path("a-2.png")
