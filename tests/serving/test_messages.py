"""What goes over the wire comes out at the other end as it went in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import (
    CachedTokens,
    EngineError,
    FinishReason,
    Guide,
    InvalidArgument,
    ModelLimits,
    PromptTooLong,
    SamplingOptions,
    TokenLogprob,
)
from ragcache_engine.prompt import Span
from ragcache_engine.protocols import BackendRequest, Conversation, Delta, PromptText
from ragcache_engine.serving.messages import (
    GenerateBody,
    RenderBody,
    ServerDescription,
    delta_from_json,
    delta_to_json,
    error_from_json,
    error_to_json,
    options_from_json,
    options_to_json,
)

OPTIONS = st.builds(
    SamplingOptions,
    max_tokens=st.none() | st.integers(1, 4000),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 100),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 2),
    seed=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    stop=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    guide=st.sampled_from(
        [None, Guide.json({"type": "object"}), Guide.choice(["yes", "no"]), Guide.regex("[0-9]")]
    ),
    logprobs=st.none() | st.integers(0, 20),
    add_special_tokens=st.booleans(),
    skip_special_tokens=st.booleans(),
    template_args=st.sampled_from([None, {}, {"enable_thinking": False}]),
)


TEXTS = st.text(st.characters(codec="utf-8"))
LOGPROBS = st.builds(
    TokenLogprob,
    TEXTS,
    st.floats(max_value=0, allow_infinity=False),
    st.lists(st.tuples(TEXTS, st.floats(max_value=0, allow_infinity=False)), max_size=2).map(tuple),
)


def over_the_wire(said: Any) -> Any:
    return json.loads(json.dumps(said))


@given(OPTIONS)
def test_options_arrive_as_they_were_sent(options: SamplingOptions):
    assert options_from_json(over_the_wire(options_to_json(options))) == options


@pytest.mark.parametrize(
    "said",
    [
        {"temperatur": 1},
        {"temperature": "hot"},
        {"max_tokens": 0},
        {"guide": "yes"},
        {"guide": {"kind": "json"}},
        {"guide": {"kind": "poem", "form": ["x"]}},
        {"stop": "."},
    ],
)
def test_options_that_cannot_be_or_are_not_known_are_refused(said: dict[str, Any]):
    with pytest.raises(ValueError, match=r"."):
        options_from_json(said)


@given(
    st.builds(
        Delta,
        st.text(st.characters(codec="utf-8")),
        st.lists(st.integers(0, 1 << 31)).map(tuple),
        st.none() | st.builds(CachedTokens, st.integers(0), st.integers(0), st.integers(0)),
        st.none() | st.sampled_from(list(FinishReason)),
        logprobs=st.lists(LOGPROBS, max_size=3).map(tuple),
    )
)
def test_deltas_arrive_as_they_were_sent(delta: Delta):
    assert delta_from_json(over_the_wire(delta_to_json(delta, None))) == delta


def test_a_request_carries_text_and_the_characters_of_its_documents():
    prompt, spans = PromptText("Tides follow the moon."), (Span(0, 5, "tides"),)
    request = BackendRequest("r", prompt, (), SamplingOptions(), "shop", is_guess=True, spans=spans)
    body = GenerateBody.of(request, "me/r", ["me/q"])
    read = GenerateBody.model_validate_json(body.model_dump_json())
    assert (read.prompt, read.documents) == (prompt.text, [(0, 5, "tides")])
    assert (read.tenant, read.request, read.adopted) == ("shop", "me/r", ["me/q"])
    assert (read.guess, read.provisional, read.options) == (True, False, {})


def test_a_conversation_arrives_as_it_was_sent():
    said = Conversation(
        [{"role": "user", "content": "Hello."}], [{"function": {"name": "f"}}], False, True
    )
    read = RenderBody.model_validate_json(RenderBody.of(said).model_dump_json())
    assert read.conversation() == said


def test_errors_keep_their_names_and_their_messages():
    error = error_from_json(over_the_wire(error_to_json(PromptTooLong("9001 tokens"))))
    assert type(error) is PromptTooLong
    assert str(error) == "9001 tokens"


def test_an_error_that_nobody_foresaw_tells_the_client_nothing_of_the_server():
    error = error_from_json(error_to_json(OSError("/secret/path is full")))
    assert "secret" not in str(error)
    assert "OSError" in str(error)


@pytest.mark.parametrize("kind", ["OfTheFuture", "KeyboardInterrupt", "object"])
def test_an_error_of_another_version_is_an_engine_error(kind: str):
    error = error_from_json({"error": {"kind": kind, "message": "oh"}})
    assert type(error) is EngineError


def test_another_servers_error_is_not_ours():
    assert error_from_json({"error": "Unauthorized"}) is None
    assert error_from_json({"error": {"message": "no", "type": "BadRequestError"}}) is None


def test_a_server_describes_itself():
    told = ServerDescription(("smol",), ModelLimits(4096, 16, 100), "hermes", "shop", False)
    assert ServerDescription.from_json(over_the_wire(told.to_json())) == told


def test_a_field_that_the_server_does_not_know_is_refused():
    with pytest.raises(ValueError, match="Extra inputs"):
        GenerateBody.model_validate({"prompt": "Why?", "request": "r", "mood": "good"})


def test_options_name_what_is_unknown():
    with pytest.raises(InvalidArgument, match=r"no option \['mood'\]"):
        options_from_json({"mood": "good"})
