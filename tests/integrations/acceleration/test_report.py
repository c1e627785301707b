"""What `accelerate` tells, and how loudly."""

import logging

import pytest

from ragcache_integrations.acceleration import (
    AccelerationReport,
    LeftPart,
    SwappedPart,
    log_report,
)

SWAPPED = SwappedPart("last", "VLLM", "RAGCacheLLM")
LEFT = LeftPart("first", "ChatOpenAI('gpt-4o')", "it asks for another model")
WANTED = LeftPart("first", "VLLM", "you asked to keep it", is_wanted=True)


def test_every_part_has_a_line_that_says_where_it_stands():
    assert str(AccelerationReport((SWAPPED,), (LEFT,))).splitlines() == [
        "accelerate swapped 1 part and left 1",
        "  swapped VLLM at last for RAGCacheLLM",
        "  left ChatOpenAI('gpt-4o') at first: it asks for another model",
    ]


@pytest.mark.parametrize(
    ("report", "level"),
    [
        (AccelerationReport((SWAPPED,)), "INFO"),
        (AccelerationReport((SWAPPED,), (WANTED,)), "INFO"),
        (AccelerationReport((SWAPPED,), (LEFT,)), "WARNING"),
        (AccelerationReport(), "WARNING"),
    ],
)
def test_it_is_a_warning_if_the_caller_should_read_it(report, level, caplog):
    caplog.set_level(logging.INFO)
    log_report(report)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, report.in_one_line)


@pytest.mark.parametrize("report", [AccelerationReport((SWAPPED,), (LEFT,)), AccelerationReport()])
def test_in_a_log_it_takes_one_line_and_says_the_same(report):
    assert "\n" not in report.in_one_line
    for line in str(report).splitlines():
        assert line.strip() in report.in_one_line
