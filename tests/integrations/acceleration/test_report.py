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
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (level, str(report))
    ]
