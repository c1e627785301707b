"""What a request tells the scheduler, and what it is told at its end, survive the way as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ragcache_engine.knowledge import Tier
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept, KeptAnswer
from ragcache_engine.tiers.provenance import PromptSources, Reason, ReuseReport
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.tiers.wire import (
    FIELD,
    TRUSTED,
    FinishMessage,
    LookedUp,
    MalformedRequest,
    RequestMessage,
)
from ragcache_engine.values import DocumentReuse


def test_what_a_request_carries_survives_the_way_to_vllm():
    message = RequestMessage(
        segments=((5, None), (20, "d1"), (21, "d" * 512)),
        forget=("d3",),
        guess="g1",
        is_provisional=True,
        adopted=("g2", "g3"),
        tombstones={"mark": 1_700_000_000_000_000_001},
        snapshot=50,
        with_bloom_filter=True,
        looked_up=(
            LookedUp((1, 2, 3), "ours", RequestMessage(((3, "d1"),), makes_donors=True)),
            LookedUp((4,), None, RequestMessage()),
        ),
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
        [[5, "d1"], [5, "d2"]],
        [[5, "d" * 513]],
        [[True, "d1"]],
    ],
)
def test_segments_that_cannot_be_so_are_refused(segments: Any):
    with pytest.raises(MalformedRequest):
        RequestMessage.from_dict({FIELD: {"segments": segments}})


def test_names_to_forget_that_are_no_names_are_passed_over():
    assert RequestMessage.from_dict({FIELD: {"forget": ["d1", 7, None]}}).forget == ("d1",)
    assert RequestMessage.from_dict({FIELD: {"forget": "d1"}}).forget == ()
    said = {"tombstones": {"a": "soon", "b": 3}}
    assert RequestMessage.from_dict({FIELD: said}).tombstones == {"b": 3}


MARK = TRUSTED.decode()


def test_the_engines_own_messages_are_trusted():
    message = RequestMessage(forget=("d1",), is_trusted=True)
    assert RequestMessage.from_dict(message.to_dict()) == message


@pytest.mark.parametrize(
    "said",
    [MARK, repr(TRUSTED), list(TRUSTED), {"bytes": MARK}, TRUSTED.hex(), True, 1, None, b"another"],
)
def test_nothing_that_json_can_say_is_trusted(said: Any):
    assert not RequestMessage.from_dict({FIELD: {"forget": ["d1"], "trusted": said}}).is_trusted


def test_a_message_holds_no_key():
    written = str(RequestMessage(((3, "d1"),), is_trusted=True).to_dict())
    assert "key" not in written
    # What marks it is of no use to a reader of logs: no JSON has bytes.
    with pytest.raises(TypeError, match="bytes"):
        json.dumps(RequestMessage(is_trusted=True).to_dict())


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


@pytest.mark.parametrize(
    "said",
    [
        3,
        [[1, 2]],
        [[[1], None, {}], "another"],
        [["no tokens", None, {}]],
        [[[1, "2"], None, {}]],
        [[[1], 7, {}]],
        [[[1], None, [1]]],
        [[[1], None, {"segments": [["no end", "d1"]]}]],
    ],
)
def test_of_malformed_prompts_to_look_up_none_is_looked_up(said: Any):
    message = RequestMessage.from_dict({FIELD: {"looked_up": said, "adopted": ["g1"]}})
    assert message == RequestMessage(adopted=("g1",))


def test_prompts_to_look_up_nest_no_others():
    deep: Any = {}
    for _ in range(5_000):
        deep = {"looked_up": [[[1], None, deep]]}
    (one,) = RequestMessage.from_dict({FIELD: deep}).looked_up
    assert one.message == RequestMessage()


def test_a_request_to_forget_to_observe_or_to_look_up_is_upkeep():
    assert RequestMessage(looked_up=[LookedUp((1,), None, RequestMessage())]).is_upkeep
    assert RequestMessage(forget=["d1"]).is_upkeep
    assert RequestMessage(snapshot=1).is_upkeep
    assert not RequestMessage(segments=((5, None),), guess="g").is_upkeep


@pytest.mark.parametrize(
    ("said", "understood"), [(0, 0), (-3, 0), ("9", 0), (True, 0), (10**9, 500)]
)
def test_a_snapshot_is_bounded_whatever_is_asked(said: Any, understood: int):
    assert RequestMessage.from_dict({FIELD: {"snapshot": said}}).snapshot == understood


def test_what_an_operator_is_told_survives_the_way_back():
    sources = PromptSources(((32, "device"),), {"d1": Reason.EVICTED})
    message = FinishMessage({"device": 32}, Counters(), sources=sources, tree=TreeSnapshot(nodes=3))
    message = replace(message, held=(True, False))
    assert FinishMessage.from_dict(json.loads(json.dumps(message.to_dict()))) == message


def test_what_a_prompt_borrowed_survives_the_way_back():
    reuse = ReuseReport(
        (DocumentReuse("d1", 20, "device"), DocumentReuse("d2", 30, None, 27, 3)), 2
    )
    message = FinishMessage({"device": 32}, Counters(), reuse)
    assert FinishMessage.from_dict(json.loads(json.dumps(message.to_dict()))) == message
    exact = FinishMessage({"device": 32}, Counters(), why_exact="asked")
    assert FinishMessage.from_dict(json.loads(json.dumps(exact.to_dict()))) == exact


def test_how_a_prompt_borrows_survives_the_way_there():
    message = RequestMessage(recompute_ratio=0.0, contexts={"d2": Context("d9", (4, 5), 6)})
    assert RequestMessage.from_dict(message.to_dict()) == message
    exact = RequestMessage(is_exact=True)
    assert RequestMessage.from_dict(exact.to_dict()) == exact


@pytest.mark.parametrize(
    "content",
    [
        {"contexts": "d2"},
        {"contexts": {"d2": ["d9"]}},
        {"contexts": {"d2": ["d9", ["x"], None]}},
        {"contexts": {"d2": [3, [1], None]}},
        {"contexts": {"d2": ["d9", [1], "x"]}},
        {"recompute_ratio": 1.5},
        {"recompute_ratio": "all"},
        {"exact": "yes"},
    ],
)
def test_malformed_wishes_for_borrowing_are_left_out(content: dict[str, Any]):
    assert RequestMessage.from_dict({FIELD: content}) == RequestMessage()


def test_what_is_to_be_kept_and_what_is_kept_arrive_as_they_were_sent():
    message = RequestMessage(
        looked_up=[LookedUp((1, 2), "shop", RequestMessage(segments=[(2, "a")]))],
        keep=KeepOrder(Tier.DISK, 5.5, 0.5, 0.25, "shop"),
        release=[(("a", "b"), None), (("c",), "shop")],
        lists_kept=True,
    )
    read = RequestMessage.from_dict(message.to_dict())
    assert read.keep == message.keep
    assert list(read.release) == list(message.release)
    assert (read.lists_kept, read.is_upkeep) == (True, True)
    for answer in (
        KeptAnswer([Kept(("a", "b"), None, "disk", None, 32, 16)]),
        KeptAnswer((), (64, 16)),
        KeptAnswer(has_failed=True),
    ):
        told = FinishMessage.from_dict(FinishMessage(None, Counters(), keeping=answer).to_dict())
        assert told is not None
        assert told.keeping == KeptAnswer(tuple(answer.kept), *answer[1:])


@pytest.mark.parametrize(
    "said",
    [
        7,
        "disk",
        [],
        ["device", None, 1, 1, None],
        ["disk", "soon", 1, 1, None],
        ["disk", None, 1, 1, 7],
    ],
)
def test_an_order_that_makes_no_sense_is_none(said: Any):
    assert RequestMessage.from_dict({FIELD: {"keep": said}}).keep is None


def test_a_document_that_stands_twice_in_a_prompt_is_named_once():
    assert RequestMessage(segments=[(2, "a"), (4, "b"), (6, "a")]).documents == ("a", "b")
