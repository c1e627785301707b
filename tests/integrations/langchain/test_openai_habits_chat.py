"""What users of other LangChain models give and read: it works as there, or an error names it."""

import asyncio
import inspect

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import ModelProfile

from ragcache_engine import InvalidArgument, RequestTimedOut
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

QUESTION = "Why is the sky blue?"


@pytest.fixture(params=[ChatRAGCache, RAGCacheLLM])
def kind(request):
    return request.param


class Traced(BaseCallbackHandler):
    """What a trace says of the last call."""

    def on_chat_model_start(self, serialized, messages, *, metadata=None, invocation_params, **_):
        self.metadata, self.parameters = metadata or {}, invocation_params

    on_llm_start = on_chat_model_start


async def read_async(model, config):
    return [piece async for piece in model.astream(QUESTION, config)]


CALLS = {
    "invoke": lambda model, config: model.invoke(QUESTION, config),
    "ainvoke": lambda model, config: asyncio.run(model.ainvoke(QUESTION, config)),
    "stream": lambda model, config: list(model.stream(QUESTION, config)),
    "astream": lambda model, config: asyncio.run(read_async(model, config)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_traces_show_where_answers_stop(kind, engine, call):
    traced = Traced()
    call(kind(engine=engine, stop="sky"), {"callbacks": [traced]})
    assert traced.metadata["ls_stop"] == ["sky"]
    assert traced.parameters["stop"] == ["sky"]
    call(kind(engine=engine, stop="sky").bind(stop=["is"]), {"callbacks": [traced]})
    assert traced.metadata["ls_stop"] == traced.parameters["stop"] == ["is"]


def test_stop_may_be_one_text(kind, engine, backend):
    kind(engine=engine, stop="sky").invoke(QUESTION)
    assert backend.asked[-1][1].stop == ("sky",)


def test_the_tenant_may_be_bound_to_a_call(kind, engine):
    prompt = "The tides follow the moon. " * 9
    model = kind(engine=engine)
    for tenant, is_first in (("a", True), ("b", True), ("a", False)):
        before = engine.stats().cached.total
        model.bind(tenant=tenant).invoke(prompt)
        assert (engine.stats().cached.total == before) == is_first


def test_what_is_exact_may_be_bound_to_a_call(kind, engine, backend, monkeypatch):
    seen = []
    generate = type(backend).generate
    monkeypatch.setattr(
        type(backend),
        "generate",
        lambda self, request: seen.append(request.is_exact) or generate(self, request),
    )
    kind(engine=engine).invoke(QUESTION)
    kind(engine=engine).bind(exact=True).invoke(QUESTION)
    assert seen == [False, True]


@pytest.mark.parametrize(
    "habit", [{"user": "me"}, {"stream_options": {"include_usage": True}}, {"stream_usage": True}]
)
def test_parameters_that_change_nothing_are_accepted(kind, engine, habit):
    plain = kind(engine=engine).invoke(QUESTION)
    assert getattr(plain, "content", plain)
    for model in (kind(engine=engine, **habit), kind(engine=engine).bind(**habit)):
        answer = model.invoke(QUESTION)
        assert getattr(answer, "content", answer) == getattr(plain, "content", plain)


def test_retries_belong_to_the_engine_and_to_with_retry(kind, engine):
    for ask in (
        lambda: kind(engine=engine, max_retries=2),
        lambda: kind(engine=engine).invoke(QUESTION, max_retries=2),
    ):
        with pytest.raises(ValueError, match=r"max_retries=2; .*once more.*with_retry\(\)"):
            ask()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", ["timeout", "request_timeout"])
def test_a_request_ends_after_its_timeout(kind, endless, call, name):
    for model in (
        kind(engine=endless, **{name: 0.05}),
        kind(engine=endless).bind(**{name: 0.05}),
    ):
        with pytest.raises(RequestTimedOut, match=r"timeout of 0\.05 s"):
            call(model, {})
    assert endless.stats().running == 0


def test_a_timeout_that_is_long_enough_changes_nothing(kind, engine):
    assert kind(engine=engine, timeout=60).invoke(QUESTION) is not None
    with pytest.raises(ValueError, match="timeout"):
        kind(engine=engine, timeout=0)
    with pytest.raises(InvalidArgument, match="timeout_s must be above 0"):
        kind(engine=engine).invoke(QUESTION, timeout=-1)


def test_the_profile_says_what_the_model_can(engine):
    profile = ChatRAGCache(engine=engine).profile
    assert profile["max_input_tokens"] == engine.limits.context_tokens
    assert profile["tool_calling"]
    # create_agent would hold answers to a form that the model is not shown; as a tool it is.
    assert "structured_output" not in profile
    assert not profile["image_inputs"]
    assert set(profile) <= set(inspect.get_annotations(ModelProfile))
    assert ChatRAGCache(engine=engine, profile={"name": "mine"}).profile == {"name": "mine"}


def test_langchain_makes_no_model_of_ours_by_its_name():
    """It has a table of its own; the guide says what to write instead."""
    with pytest.raises(ValueError, match="ragcache"):
        init_chat_model("any", model_provider="ragcache")


@pytest.mark.parametrize("top", [None, 1])
def test_logprobs_come_in_the_form_of_chat_openai(engine, top):
    asked = {"logprobs": True, "top_logprobs": top}
    chat = ChatRAGCache(engine=engine)
    whole = chat.bind(**asked).invoke(QUESTION)
    told = whole.response_metadata["logprobs"]["content"]
    assert "".join(each["token"] for each in told) == whole.content
    assert [each["logprob"] for each in told] == [0.0] * len(told)
    assert bytes(told[0]["bytes"]).decode() == told[0]["token"]
    assert [len(each["top_logprobs"]) for each in told] == [top or 0] * len(told)
    pieces = list(ChatRAGCache(engine=engine, **asked).stream(QUESTION))
    streamed = pieces[0]
    for piece in pieces[1:]:
        streamed += piece
    assert streamed.response_metadata["logprobs"] == whole.response_metadata["logprobs"]
    (generation,) = RAGCacheLLM(engine=engine, **asked).generate([QUESTION]).generations[0]
    assert len(generation.generation_info["logprobs"]["content"]) > 1
    assert "logprobs" not in chat.invoke(QUESTION).response_metadata


def test_likeliest_tokens_are_asked_for_with_logprobs(kind, engine):
    with pytest.raises(ValueError, match="needs logprobs=True"):
        kind(engine=engine, top_logprobs=3)
    with pytest.raises(ValueError, match="logprobs must be at most 20"):
        kind(engine=engine, logprobs=True, top_logprobs=21)


@pytest.mark.parametrize(("most", "ended"), [(3, "length"), (99, "stop")])
def test_how_an_answer_ended_is_told_in_openais_words(engine, most, ended):
    """LangChain has no field and no words of its own for it: it hands on what a model says."""
    chat = ChatRAGCache(engine=engine, max_tokens=most)
    assert chat.invoke(QUESTION).response_metadata["finish_reason"] == ended
    events = list(chat.stream_events(QUESTION, version="v3"))
    (told,) = [event for event in events if event["event"] == "message-finish"]
    assert told["metadata"]["finish_reason"] == ended
