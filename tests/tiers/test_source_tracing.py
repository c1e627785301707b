"""Runs of cached tokens, cut by document."""

from __future__ import annotations

import json

import pytest

from ragcache_engine.tiers.provenance import PromptSources, Reason

SOURCES = PromptSources(((64, "device"), (96, "disk"), (128, "host")), {"b": Reason.QUICKER})


@pytest.mark.parametrize(
    ("start", "end", "by_tier"),
    [
        (0, 64, {"device": 64}),
        (60, 70, {"device": 4, "disk": 6}),
        (0, 500, {"device": 64, "disk": 32, "host": 32}),
        (128, 500, {}),
        (90, 100, {"disk": 6, "host": 4}),
    ],
)
def test_a_document_gets_the_part_of_each_run_that_lies_in_it(
    start: int, end: int, by_tier: dict[str, int]
):
    assert SOURCES.tokens_by_tier(start, end) == by_tier


def test_what_is_cached_as_a_whole_needs_no_reason():
    assert SOURCES.why("b", 10, 10) == ""
    assert SOURCES.why("b", 10, 4) == Reason.QUICKER
    assert SOURCES.why("a", 10, 4) == Reason.SHARED_BLOCK
    assert SOURCES.why("a", 10, 0) == ""


def test_sources_survive_the_way_to_another_process():
    assert PromptSources.from_dict(json.loads(json.dumps(SOURCES.to_dict()))) == SOURCES
