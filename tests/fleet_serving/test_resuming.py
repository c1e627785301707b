"""However often an answer is begun again, the reader gets every piece once and in order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.errors import AnswersDiffer
from ragcache_engine.fleet_serving.resuming import EventReader, SentAnswer

pieces = st.lists(st.text("abc ", min_size=1, max_size=4), min_size=1, max_size=12)


def cut(text: str, data: st.DataObject) -> list[str]:
    """Cut a text anew: another replica's steps end elsewhere."""
    parts = []
    while text:
        length = data.draw(st.integers(1, len(text)))
        parts.append(text[:length])
        text = text[length:]
    return parts


def completion(texts: list[str], attempt: int, index: int = 0) -> list[dict[str, Any]]:
    events = [{"id": f"c{attempt}", "choices": [{"index": index, "text": text}]} for text in texts]
    end = {"index": index, "text": "", "finish_reason": "stop"}
    return [*events, {"id": f"c{attempt}", "choices": [end]}]


@given(pieces, st.integers(0, 4), st.data())
def test_the_reader_gets_the_text_once(texts, losses, data):
    whole, answer, got = "".join(texts), SentAnswer(), []
    for attempt in range(losses + 1):
        if attempt:
            answer.begin_again()
        events = completion(cut(whole, data), attempt)
        if attempt < losses:
            events = events[: data.draw(st.integers(0, len(events)))]
        got += [event for one in events if (event := answer.take(one)) is not None]
    assert "".join(event["choices"][0]["text"] for event in got) == whole
    assert len({event["id"] for event in got}) == 1
    finished = [event for event in got if event["choices"][0].get("finish_reason")]
    assert len(finished) == 1


@given(pieces, pieces, st.data())
def test_several_choices_are_kept_apart(one, other, data):
    answer = SentAnswer()
    first = [*completion(one, 0, 0), *completion(other, 0, 1)]
    got = [answer.take(event) for event in first[: data.draw(st.integers(0, len(first)))]]
    answer.begin_again()
    got += [answer.take(event) for event in first]
    texts = {0: "", 1: ""}
    for event in filter(None, got):
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {0: "".join(one), 1: "".join(other)}


def test_chats_get_their_role_and_their_tool_calls_once():
    def chunks(attempt: int) -> list[dict[str, Any]]:
        def call(arguments: str, **head: Any) -> dict[str, Any]:
            function = {"arguments": arguments, **head}
            return {"index": 0, "id": f"call-{attempt}", "type": "function", "function": function}

        deltas = [
            {"role": "assistant", "content": ""},
            {"content": "Let me "},
            {"content": "see."},
            {"tool_calls": [call('{"a', name="look")]},
            {"tool_calls": [call('": 1}')]},
        ]
        return [{"id": "x", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]

    answer = SentAnswer()
    got = [answer.take(event) for event in chunks(0)[:4]]
    answer.begin_again()
    got += [answer.take(event) for event in chunks(1)]
    deltas = [event["choices"][0]["delta"] for event in got if event]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert {call["id"] for call in calls} == {"call-0"}
    assert [call["function"].get("name") for call in calls] == ["look", None]


def test_our_own_events_give_each_token_once():
    events = [
        {"prompt_tokens": 9},
        {"text": "a", "tokens": [1], "cached": [3, 0, 0]},
        {"text": "", "tokens": [2]},
        {"text": "bc", "tokens": [3, 4], "finish": "stop"},
    ]
    answer = SentAnswer()
    got = [answer.take(event) for event in events[:2]]
    answer.begin_again()
    got += [answer.take(event) for event in events]
    kept = [event for event in got if event]
    assert [token for event in kept for token in event.get("tokens", ())] == [1, 2, 3, 4]
    assert [event for event in kept if "prompt_tokens" in event] == [{"prompt_tokens": 9}]
    assert [event["finish"] for event in kept if "finish" in event] == ["stop"]


def test_an_attempt_that_says_something_else_continues_nothing():
    answer = SentAnswer()
    answer.take({"text": "The moon"})
    answer.begin_again()
    with pytest.raises(AnswersDiffer, match="float32"):
        answer.take({"text": "The sun"})


def test_a_piece_with_logprobs_is_never_cut():
    answer = SentAnswer()
    event = {"choices": [{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}}]}
    answer.take({"choices": [{"index": 0, "text": "a"}]})
    answer.begin_again()
    with pytest.raises(AnswersDiffer, match="logprobs"):
        answer.take(event)


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
@given(texts=st.lists(st.text(max_size=5), max_size=6), data=st.data())
def test_events_are_whole_however_the_bytes_come(texts, data, line):
    written = [f"data: {json.dumps(text)}".encode() for text in texts]
    sent = b"".join(event + line + line for event in written)
    reader, read = EventReader(), []
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        read += reader.feed(sent[:size])
        sent = sent[size:]
    assert read == written


def test_a_long_event_and_a_long_answer_are_read_once():
    # Copied again with each part, these would not end.
    reader, part = EventReader(), b"x" * 100
    assert not [event for _ in range(200_000) for event in reader.feed(part)]
    (event,) = reader.feed(b"\n\n")
    assert len(event) == 20_000_000
    answer, said = SentAnswer(), {"text": "word " * 4, "tokens": [1, 2, 3, 4]}
    assert all(answer.take(said) for _ in range(60_000))
    answer.begin_again()
    assert not any(answer.take(said) for _ in range(60_000))
    assert answer.take(said) == said
