"""What a request tells the scheduler, and what it is told at its end, survive the way as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.wire import FIELD, FinishMessage, MalformedRequest, RequestMessage


def test_what_a_request_carries_survives_the_way_to_vllm():
    message = RequestMessage(
        segments=((5, None), (20, "d1"), (20, "d2")),
        forget=("d3",),
        guess="g1",
        is_provisional=True,
        adopted=("g2", "g3"),
        operator_key="key",
        tombstones={"mark": 1_700_000_000_000_000_001},
    )
    assert RequestMessage.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_a_request_that_says_nothing_carries_nothing():
    assert RequestMessage().to_dict() == {}
    for params in (None, {}, {"other": 1}, {FIELD: None}, {FIELD: []}, {FIELD: {}}):
        assert RequestMessage.from_dict(params) == RequestMessage()


@pytest.mark.parametrize(
    "segments",
    [
        "text",
        {"end": 5},
        [5],
        [[5]],
        [[5, "d1", "d2"]],
        [["5", "d1"]],
        [[5.5, "d1"]],
        [[None, "d1"]],
        [[-1, "d1"]],
        [[20, "d1"], [10, "d2"]],
        [[5, 7]],
        [[5, ["d1"]]],
    ],
)
def test_segments_that_cannot_be_so_are_refused(segments: Any):
    with pytest.raises(MalformedRequest):
        RequestMessage.from_dict({FIELD: {"segments": segments}})


def test_names_to_forget_that_are_no_names_are_passed_over():
    assert RequestMessage.from_dict({FIELD: {"forget": ["d1", 7, None]}}).forget == ("d1",)
    assert RequestMessage.from_dict({FIELD: {"forget": "d1"}}).forget == ()
    said = {"operator_key": 7, "tombstones": {"a": "soon", "b": 3}}
    message = RequestMessage.from_dict({FIELD: said})
    assert (message.operator_key, message.tombstones) == (None, {"b": 3})


def test_malformed_segments_take_nothing_else_with_them():
    said = {FIELD: {"segments": "text", "guess": "g1"}}
    message = RequestMessage.from_dict(said, ignore_segments=True)
    assert message == RequestMessage(guess="g1")


@pytest.mark.parametrize("tokens", [None, {"device": 32, "host": 16, "disk": 0}])
def test_what_a_request_is_told_at_its_end_survives_the_way_back(tokens: dict[str, int] | None):
    counters = Counters(ended=3, host_tokens=16)
    counters.evicted["host"] = 2
    message = FinishMessage(tokens, counters)
    assert FinishMessage.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_a_request_that_was_told_nothing_has_no_message():
    for params in (None, {}, {"other": 1}, {FIELD: None}):
        assert FinishMessage.from_dict(params) is None
