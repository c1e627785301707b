"""Which models are swapped, and with which options."""

import asyncio
from types import SimpleNamespace

import pytest
from langchain_core.language_models import FakeListLLM, SimpleChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from ragcache_engine import EngineClosed, EngineConfig, NoChatTemplate, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.acceleration import AccelerationTask, Rules
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM, accelerate
from ragcache_integrations.langchain.acceleration.chain_copy import ChainCopier
from ragcache_integrations.langchain.acceleration.models import make_our_model

QUESTION = "Why is the sky blue?"


class Colour(BaseModel):
    """The colour of a thing."""

    name: str


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


@pytest.fixture
def real_rules(engine, monkeypatch):
    """Rules of an engine whose configuration names a real model, which is not started."""
    config = EngineConfig(model="Qwen/Qwen2.5-7B-Instruct", backend="vllm")
    monkeypatch.setattr(engine, "config", config)
    return lambda **rules: Rules(engine, **rules)


def test_a_chat_model_becomes_a_chat_model_and_an_llm_an_llm(chat, llm, swap):
    assert isinstance(swap(chat)[0], ChatRAGCache)
    assert isinstance(swap(llm)[0], RAGCacheLLM)


def test_options_with_the_same_meaning_are_carried(stock_chat, swap):
    stock = stock_chat(
        temperature=0.3,
        max_tokens=20,
        stop=["."],
        model_kwargs={"seed": 5},
        name="mine",
        tags=["a"],
        metadata={"of": "us"},
        cache=False,
    )
    ours, report = swap(stock)
    assert (ours.temperature, ours.max_new_tokens, ours.stop, ours.seed) == (0.3, 20, ["."], 5)
    assert (ours.name, ours.tags, ours.metadata["of"], ours.cache) == ("mine", ["a"], "us", False)
    assert report.swapped[0].after == (
        "ChatRAGCache(temperature=0.3, max_new_tokens=20, stop=['.'])"
    )


def test_a_chat_model_that_streams_still_does(stock_chat, swap):
    class StreamingChat(stock_chat):
        streaming: bool = False

    assert swap(StreamingChat(streaming=True))[0].streaming
    ours, _ = swap(StreamingChat())
    assert not ours.streaming


def test_a_model_that_could_limit_its_answers_and_does_not_gets_all_the_room(
    stock_chat, chat, swap, engine
):
    assert swap(stock_chat())[0].max_new_tokens == engine.limits.context_tokens
    assert swap(chat)[0].max_new_tokens == 512


def test_the_callers_options_count_before_those_of_the_models(stock_chat, swap):
    ours, _ = swap(stock_chat(temperature=0.3), options={"temperature": 0, "max_tokens": 5})
    assert (ours.temperature, ours.max_new_tokens) == (0, 5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"logit_bias": {1: 2.0}}, "logit_bias"),
        ({"n": 2}, "got n=2"),
        ({"temperature": -1}, "temperature"),
        ({"model_kwargs": {"frequency": 3}}, "frequency=3"),
    ],
)
def test_a_model_with_an_option_that_the_engine_lacks_is_left(stock_chat, swap, options, named):
    stock = stock_chat(**options)
    swapped, report = swap(stock)
    assert swapped is stock
    assert named in report.left[0].reason


def test_a_model_that_asks_for_another_model_is_left_unless_all_are_to_be_swapped(
    stock_chat, real_rules, engine
):
    stock = stock_chat(model_name="gpt-4o")
    task = AccelerationTask(real_rules())
    assert ChainCopier(task).copy(stock) is stock
    (left,) = task.report().left
    assert left.part == "StockChat('gpt-4o')"
    assert left.reason == (
        "it asks for the model 'gpt-4o', and the engine runs 'Qwen/Qwen2.5-7B-Instruct'; "
        "models='all' swaps it nevertheless"
    )
    assert isinstance(make_our_model(stock, real_rules(models="all")), ChatRAGCache)


def test_a_model_that_names_the_engines_model_or_none_is_swapped(stock_chat, chat, real_rules):
    same = stock_chat(model_name="qwen2.5-7b-instruct")
    assert isinstance(make_our_model(same, real_rules()), ChatRAGCache)
    assert isinstance(make_our_model(chat, real_rules()), ChatRAGCache)


class Pipeline(FakeListLLM):
    """An LLM with the fields of a HuggingFacePipeline."""

    responses: list[str] = Field(default=["stock"])
    model_kwargs: dict[str, object] = Field(default={"dtype": "float32"})
    pipeline_kwargs: dict[str, object] = Field(default_factory=dict)


class ChatAround(SimpleChatModel):
    """A chat model that asks an LLM, as ChatHuggingFace asks a HuggingFacePipeline."""

    llm: object
    temperature: float | None = None

    @property
    def _llm_type(self):
        return "around"

    def _call(self, messages, stop=None, run_manager=None, **kwargs):
        return "stock"


def test_a_chat_model_around_an_llm_has_the_options_of_both(swap):
    pipeline = Pipeline(pipeline_kwargs={"max_new_tokens": 9, "temperature": 0.9})
    ours, _ = swap(ChatAround(llm=pipeline, temperature=0.1))
    assert (ours.temperature, ours.max_new_tokens) == (0.1, 9)


def test_a_model_of_hugging_face_must_say_how_it_samples(swap):
    pipeline = Pipeline(pipeline_kwargs={"max_new_tokens": 9})
    swapped, report = swap(pipeline)
    assert swapped is pipeline
    assert "do_sample" in report.left[0].reason
    assert swap(pipeline, options={"temperature": 0})[0].temperature == 0


def test_without_a_chat_template_chat_models_are_left_and_llms_swapped(
    chat, llm, swap, engine, monkeypatch
):
    def refuse(*args, **kwargs):
        raise NoChatTemplate("the model has none")

    monkeypatch.setattr(engine, "chat", SimpleNamespace(prompt=refuse))
    swapped, report = swap(chat)
    assert swapped is chat
    assert "cannot write conversations" in report.left[0].reason
    assert isinstance(swap(llm)[0], RAGCacheLLM)


@pytest.mark.parametrize("choice", ["any", None])
def test_bound_tools_are_carried(stock_chat, swap, choice):
    stock = stock_chat(temperature=0, max_tokens=400).bind_tools([look_up], tool_choice=choice)
    swapped, report = swap(ChatPromptTemplate.from_template("{q}") | stock)
    assert report.is_complete
    message = swapped.invoke({"q": QUESTION})
    assert [call["name"] for call in message.tool_calls] == ["look_up"] * (choice == "any")


def test_structured_output_by_tools_is_carried(stock_chat, swap):
    stock = stock_chat(temperature=0, max_tokens=400).with_structured_output(Colour)
    swapped, report = swap(stock)
    assert report.is_complete
    assert isinstance(swapped.invoke(QUESTION), Colour)


def test_structured_output_by_a_response_format_is_carried(stock_chat, swap, recorded):
    form = {
        "type": "json_schema",
        "json_schema": {"name": "Colour", "schema": Colour.model_json_schema()},
    }
    swapped, report = swap(stock_chat(max_tokens=400).bind(response_format=form))
    assert report.is_complete
    assert Colour.model_validate_json(swapped.invoke(QUESTION).content)


def parse_as_openai_does(message):
    """What ChatOpenAI.with_structured_output puts behind the model for a Pydantic class."""
    return message.additional_kwargs["parsed"]


def test_structured_output_as_chat_openai_binds_it_is_carried(stock_chat, swap):
    bound = stock_chat(max_tokens=400).bind(response_format=Colour)
    swapped, report = swap(bound | RunnableLambda(parse_as_openai_does))
    assert report.is_complete
    assert isinstance(swapped.invoke(QUESTION), Colour)
    assert isinstance(asyncio.run(swapped.ainvoke(QUESTION)), Colour)
    (streamed,) = swapped.stream(QUESTION)
    assert isinstance(streamed, Colour)


def test_an_answer_that_was_cut_short_is_not_parsed(stock_chat, swap):
    swapped, _ = swap(stock_chat(max_tokens=1).bind(response_format=Colour))
    assert "parsed" not in swapped.invoke(QUESTION).additional_kwargs


def test_a_response_format_of_another_kind_leaves_the_model(stock_chat, swap):
    stock = stock_chat().bind(response_format={"type": "grammar"})
    left, report = swap(stock)
    assert left is stock
    assert "with_structured_output" in report.left[0].reason


def test_tools_in_another_providers_form_leave_the_model(chat, swap):
    stock = chat.bind(tools=[{"name": "look_up", "input_schema": {}}], tool_choice="look_up")
    swapped, report = swap(stock)
    assert swapped is stock
    assert "bound to it cannot be carried" in report.left[0].reason


def test_an_engine_that_is_closed_says_so(chat):
    engine = RAGCacheEngine(EngineConfig(backend="memory"), backend=MemoryBackend())
    engine.close()
    with pytest.raises(EngineClosed):
        accelerate(chat, engine=engine)
