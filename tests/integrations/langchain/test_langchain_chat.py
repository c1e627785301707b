import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import add_usage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import ConfigurableField
from langchain_core.tools import tool
from langchain_tests.integration_tests import ChatModelIntegrationTests
from pydantic import BaseModel
from typing_extensions import TypedDict
from waiting import eventually

from ragcache_engine import (
    AnswerCutShort,
    BadRequest,
    EmptyPrompt,
    EngineClosed,
    EngineConfig,
    Guide,
    PromptTooLong,
    RAGCacheEngine,
    RefusedMessages,
    UnsupportedGuide,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM
from ragcache_integrations.langchain.complete_answers import require_complete

MESSAGES = [SystemMessage("Be brief."), HumanMessage("Why is the sky blue?")]
ANSWER = "You asked: Why is the sky blue?"


class Recorder(BaseCallbackHandler):
    def __init__(self):
        self.tokens, self.results, self.starts = [], [], []

    def on_chat_model_start(self, serialized, messages, **kwargs):
        self.starts.append((serialized, kwargs))

    def on_llm_new_token(self, token, *, chunk=None, **kwargs):
        self.tokens.append(token)
        assert isinstance(chunk, ChatGenerationChunk)

    def on_llm_end(self, response, **kwargs):
        self.results.append(response)


@pytest.fixture
def chat(engine):
    return ChatRAGCache(engine=engine, temperature=0)


@pytest.fixture
def chat_saying(make_engine):
    """reply -> a chat model that gives this reply, whatever it is asked."""

    def make(reply, **settings):
        engine = make_engine(MemoryBackend(lambda prompt: reply))
        return ChatRAGCache(engine=engine, temperature=0, **settings)

    return make


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


async def join_chunks(chunks):
    return "".join([chunk.content async for chunk in chunks])


def merge_chunks(chunks):
    first, *others = chunks
    for chunk in others:
        first = first + chunk
    return first


def test_every_way_of_asking_gives_the_same_answer(chat):
    two = [[("human", "Two?")], MESSAGES]
    assert chat.invoke(MESSAGES).content == ANSWER
    assert asyncio.run(chat.ainvoke(MESSAGES)).content == ANSWER
    assert "".join(chunk.content for chunk in chat.stream(MESSAGES)) == ANSWER
    assert asyncio.run(join_chunks(chat.astream(MESSAGES))) == ANSWER
    assert [m.content for m in chat.batch(two)] == ["You asked: Two?", ANSWER]
    assert [m.content for m in asyncio.run(chat.abatch(two))] == ["You asked: Two?", ANSWER]


def test_a_stream_comes_in_pieces(chat):
    assert len(list(chat.stream(MESSAGES))) > 3


def test_the_model_is_asked_in_its_own_format(chat, recorded, engine):
    chat.invoke([*MESSAGES, AIMessage("Light."), HumanMessage("More?")])
    prompt, options = recorded[0]
    assert prompt == engine.chat.prompt(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why is the sky blue?"},
            {"role": "assistant", "content": "Light."},
            {"role": "user", "content": "More?"},
        ]
    )
    assert not options.add_special_tokens


def test_what_it_renders_is_what_it_asks(chat, recorded):
    rendered = chat.render(MESSAGES)
    chat.invoke(MESSAGES)
    assert recorded[0][0] == rendered


@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_the_conversations_of_a_batch_run_together(endless, how):
    chat = ChatRAGCache(engine=endless)
    prompts = [f"Prompt number {number}?" for number in range(40)]

    def ask():
        return chat.batch(prompts) if how == "batch" else asyncio.run(chat.abatch(prompts))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        assert eventually(lambda: endless.stats().running == 40)
        endless.close()
        assert isinstance(asking.exception(), EngineClosed)


def test_a_batch_may_be_held_to_fewer_at_a_time(chat):
    answers = chat.batch(["One?", "Two?"], {"max_concurrency": 1})
    assert [m.content for m in answers] == ["You asked: One?", "You asked: Two?"]


def test_sampling_parameters_reach_the_engine(engine, recorded):
    chat = ChatRAGCache(engine=engine, temperature=0.5, top_k=3, seed=11)
    chat.invoke(MESSAGES)
    chat.bind(temperature=0.7, max_tokens=9).invoke(MESSAGES, stop=["x"])
    first, second = (options for _, options in recorded)
    assert (first.temperature, first.top_k, first.seed, first.max_tokens) == (0.5, 3, 11, 512)
    assert (second.temperature, second.top_k, second.max_tokens) == (0.7, 3, 9)
    assert second.stop == ("x",)


def test_stop_strings_end_an_answer(engine, chat):
    assert chat.invoke(MESSAGES, stop=["the sky"]).content == "You asked: Why is "
    streamed = merge_chunks(chat.stream(MESSAGES, stop=["the sky"]))
    assert streamed.content == "You asked: Why is "
    assert ChatRAGCache(engine=engine, stop=[":"]).invoke(MESSAGES).content == "You asked"


def test_a_setting_of_the_model_is_refused_here(engine):
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        ChatRAGCache(engine=engine, tensor_parallel_size=2)


def test_a_parameter_the_engine_does_not_have_is_refused(chat):
    with pytest.raises(BadRequest, match="logit_bias"):
        chat.invoke(MESSAGES, logit_bias={1: 1.0})


def test_what_other_chat_models_take_works_or_says_what_to_do_instead(engine, recorded):
    chat = ChatRAGCache(engine=engine, max_completion_tokens=5, timeout=None, logprobs=False)
    chat.invoke(MESSAGES)
    chat.invoke(MESSAGES, max_completion_tokens=7, timeout=None)
    assert [options.max_tokens for _, options in recorded] == [5, 7]
    with pytest.raises(BadRequest, match=r"max_retries=3.*once more"):
        chat.invoke(MESSAGES, max_retries=3)


def test_parameters_can_be_left_to_the_configuration(engine, recorded):
    chat = ChatRAGCache(engine=engine, temperature=0).configurable_fields(
        temperature=ConfigurableField(id="heat"), max_new_tokens=ConfigurableField(id="most")
    )
    chat.invoke(MESSAGES, {"configurable": {"heat": 0.3, "most": 7}})
    assert (recorded[0][1].temperature, recorded[0][1].max_tokens) == (0.3, 7)


def test_usage_and_what_else_is_known_stand_where_langchain_keeps_them(chat):
    chat.invoke("word " * 40)
    message = chat.invoke("word " * 40)
    usage = message.usage_metadata
    assert usage["input_token_details"] == {"cache_read": 48}
    assert sum(usage["input_token_details"].values()) <= usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    known = message.response_metadata
    assert (known["model_name"], known["finish_reason"]) == ("any", "stop")
    assert (known["model_provider"], known["document_ids"]) == ("ragcache", [])
    assert known["ttft_s"] > 0
    tiers = [known[f"cached_tokens_{tier}"] for tier in ("device", "host", "disk")]
    assert (known["cached_tokens"], tiers) == (48, [48, 0, 0])


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_chunks_of_a_stream_add_up_to_the_whole_answer(chat, way):
    chat.invoke("word " * 40)
    asked = chat.invoke("word " * 40)
    recorder = Recorder()
    config = {"callbacks": [recorder]}

    async def read():
        return [chunk async for chunk in chat.astream("word " * 40, config)]

    chunks = list(chat.stream("word " * 40, config)) if way == "stream" else asyncio.run(read())
    streamed = merge_chunks(chunks)
    assert streamed.content == asked.content
    assert streamed.usage_metadata == asked.usage_metadata
    assert streamed.response_metadata["finish_reason"] == "stop"
    assert [bool(chunk.usage_metadata) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].chunk_position == "last"
    told = recorder.results[0].generations[0][0].message
    assert told.usage_metadata == asked.usage_metadata
    assert "".join(recorder.tokens) == asked.content


def test_two_answers_usages_add_up(chat):
    one, two = (merge_chunks(chat.stream("word " * 40)).usage_metadata for _ in "ab")
    assert add_usage(one, two)["input_token_details"] == {"cache_read": 48}


def test_events_of_a_stream_tell_every_piece(chat):
    async def events():
        return [event async for event in chat.astream_events(MESSAGES, version="v2")]

    heard = asyncio.run(events())
    pieces = [e["data"]["chunk"].content for e in heard if e["event"] == "on_chat_model_stream"]
    assert "".join(pieces) == ANSWER
    assert heard[-1]["data"]["output"].usage_metadata["output_tokens"] > 0


def test_tracing_learns_provider_model_and_limits(engine):
    chat = ChatRAGCache(engine=engine, temperature=0, stop=["."])
    traced = chat._get_ls_params()
    assert (traced["ls_provider"], traced["ls_model_type"]) == ("ragcache", "chat")
    assert traced["ls_model_name"] == "any"
    assert (traced["ls_temperature"], traced["ls_max_tokens"]) == (0, 512)
    assert traced["ls_stop"] == ["."]
    recorder = Recorder()
    chat.invoke(MESSAGES, {"callbacks": [recorder]})
    assert recorder.starts[0][1]["invocation_params"]["model_name"] == "any"


def test_two_chats_that_answer_differently_identify_differently(engine, chat):
    assert chat.asdict() != ChatRAGCache(engine=engine, temperature=0.3).asdict()
    assert chat.asdict()["_type"] == "ragcache-chat"


def test_one_bad_conversation_of_agenerate_leaves_the_others_their_answers(chat):
    answers = asyncio.run(chat.abatch([MESSAGES, "word " * 9000], return_exceptions=True))
    assert answers[0].content == ANSWER
    assert isinstance(answers[1], PromptTooLong)


# Content.


def test_text_blocks_are_text(chat, recorded):
    chat.invoke([HumanMessage([{"type": "text", "text": "One."}, "Two."])])
    chat.invoke([HumanMessage(content_blocks=[{"type": "text", "text": "One."}])])
    assert "One.\nTwo." in recorded[0][0]
    assert "<user>\nOne.\n</user>" in recorded[1][0]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
        {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
        {"type": "who knows"},
    ],
)
def test_what_is_no_text_is_refused_by_name(chat, block):
    with pytest.raises(RefusedMessages):
        chat.invoke([HumanMessage([{"type": "text", "text": "What is it?"}, block])])


def test_an_empty_conversation_is_named(chat):
    with pytest.raises((RefusedMessages, EmptyPrompt)):
        chat.invoke([])


# Structured output.


class Color(BaseModel):
    """A colour."""

    name: str
    red: int = 0


class ColorDict(TypedDict):
    """A colour."""

    name: str
    red: int


COLOR_SCHEMA = {
    "title": "Color",
    "description": "A colour.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "red": {"type": "integer"}},
    "required": ["name", "red"],
}
BLUE = '{"name": "blue", "red": 3}'


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("schema", [Color, ColorDict, COLOR_SCHEMA])
def test_structured_output_is_a_value_of_the_schema(chat_saying, schema, method):
    call = json.dumps({"name": schema_name(schema), "arguments": json.loads(BLUE)})
    chat = chat_saying(call if method == "function_calling" else BLUE)
    value = chat.with_structured_output(schema, method=method).invoke("Which colour?")
    expected = Color(name="blue", red=3) if schema is Color else {"name": "blue", "red": 3}
    assert value == expected


def schema_name(schema):
    return schema["title"] if isinstance(schema, dict) else schema.__name__


def test_the_answer_is_held_to_the_schema(engine, chat, recorded):
    assert chat.with_structured_output(Color).invoke("Which colour?") == Color(name="text")
    guide = recorded[0][1].guide
    assert guide == Guide.json(Color.model_json_schema())
    assert chat.with_structured_output(method="json_mode").invoke("Which colour?") == {}


@pytest.mark.parametrize(
    "form",
    [
        {"name": "Color", "schema": COLOR_SCHEMA, "strict": True},
        {"type": "json_schema", "json_schema": {"name": "Color", "schema": COLOR_SCHEMA}},
        {
            "type": "function",
            "function": {
                "name": "Color",
                "description": "A colour.",
                "parameters": {
                    name: COLOR_SCHEMA[name] for name in ("type", "properties", "required")
                },
            },
        },
    ],
    ids=["a schema with a name", "a response format", "a tool"],
)
def test_the_answer_is_held_to_a_schema_in_openais_forms(chat, recorded, form):
    chat.with_structured_output(form).invoke("Which colour?")
    assert recorded[0][1].guide == Guide.json(COLOR_SCHEMA)


def test_structured_output_streams_what_is_known_so_far(chat_saying):
    values = list(chat_saying(BLUE).with_structured_output(COLOR_SCHEMA).stream("Which colour?"))
    assert len(values) > 1
    assert values[-1] == {"name": "blue", "red": 3}


def test_the_raw_answer_comes_along_if_asked_for(chat_saying):
    model = chat_saying(BLUE).with_structured_output(Color, include_raw=True)
    assert model.invoke("?")["parsed"] == Color(name="blue", red=3)
    cut = chat_saying(BLUE, max_tokens=2).with_structured_output(Color, include_raw=True)
    answer = cut.invoke("?")
    assert isinstance(answer["raw"], AIMessage)
    assert answer["parsed"] is None
    assert answer["parsing_error"] is not None


METHODS = ["json_schema", "function_calling", "json_mode"]
CALL_BLUE = json.dumps({"name": "Color", "arguments": json.loads(BLUE)})


def ask(model, way):
    """Ask in one of four ways, and return the value, or the values of a stream."""

    async def drawn():
        return [value async for value in model.astream("Which colour?")]

    return {
        "invoke": lambda: model.invoke("Which colour?"),
        "ainvoke": lambda: asyncio.run(model.ainvoke("Which colour?")),
        "stream": lambda: list(model.stream("Which colour?")),
        "astream": lambda: asyncio.run(drawn()),
    }[way]()


@pytest.fixture
def cut_off(chat_saying):
    """(method, **how) -> a model whose structured answer ends in the middle of a value."""

    def make(method, ends_by="max_tokens", **how):
        reply, tokens = (CALL_BLUE, 14) if method == "function_calling" else (BLUE, 7)
        limit = {"max_tokens": tokens} if ends_by == "max_tokens" else {"stop": ["ue"]}
        return chat_saying(reply).with_structured_output(Color, method=method, **limit, **how)

    return make


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("method", METHODS)
def test_an_answer_that_max_tokens_cut_off_is_an_error_by_name(cut_off, method, way):
    with pytest.raises(AnswerCutShort, match=r"ended after (7|14) tokens.*raise max_tokens"):
        ask(cut_off(method), way)


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("method", METHODS)
def test_an_answer_that_a_stop_string_cut_off_is_an_error_by_name(cut_off, method, way):
    with pytest.raises(AnswerCutShort, match="without stop"):
        ask(cut_off(method, ends_by="stop"), way)


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("method", METHODS)
def test_a_cut_answer_that_comes_with_the_raw_one_has_its_error_beside_it(cut_off, method, way):
    answers = ask(cut_off(method, include_raw=True), way)
    answer = answers if "invoke" in way else {k: v for part in answers for k, v in part.items()}
    assert answer["raw"].response_metadata["finish_reason"] == "length"
    assert answer["parsed"] is None
    assert isinstance(answer["parsing_error"], AnswerCutShort)


def test_a_cut_answer_without_a_class_is_not_completed_either(chat_saying):
    cut = chat_saying(BLUE, max_tokens=7)
    with pytest.raises(AnswerCutShort):
        cut.with_structured_output(COLOR_SCHEMA).invoke("Which colour?")
    stream = cut.with_structured_output(COLOR_SCHEMA).stream("Which colour?")
    assert "name" in next(value for value in stream if value)
    with pytest.raises(AnswerCutShort):
        list(stream)


def call_of(arguments, kind=AIMessage):
    """A message that calls a tool, as the model wrote the arguments."""
    if kind is AIMessageChunk:
        return AIMessageChunk(
            "", tool_call_chunks=[{"name": "Color", "args": arguments, "id": "1", "index": 0}]
        )
    call = {"name": "Color", "id": "1"}
    try:
        return AIMessage("", tool_calls=[{**call, "args": json.loads(arguments)}])
    except ValueError:
        return AIMessage("", invalid_tool_calls=[{**call, "args": arguments, "error": None}])


HALF = BLUE[:-3]
IN_FORMS = {
    "a text": AIMessage,
    "a call": call_of,
    "a streamed call": lambda arguments: call_of(arguments, AIMessageChunk),
}


@pytest.mark.parametrize("form", IN_FORMS)
def test_an_answer_that_is_complete_at_its_last_token_is_no_cut_one(form):
    whole, half = IN_FORMS[form](BLUE), IN_FORMS[form](HALF)
    whole.response_metadata = half.response_metadata = {"finish_reason": "length"}
    assert require_complete(whole) is whole
    with pytest.raises(AnswerCutShort):
        require_complete(half)


def test_a_number_at_the_last_token_may_be_cut():
    with pytest.raises(AnswerCutShort):
        require_complete(AIMessage("12", response_metadata={"finish_reason": "length"}))


def test_leaving_a_structured_stream_early_cancels_the_request_and_is_no_error(make_engine):
    def stall(step):
        if step > 8:
            raise Stall

    long = json.dumps({"name": "blue and " * 99})
    engine = make_engine(MemoryBackend(lambda prompt: long, fault=stall))
    chat = ChatRAGCache(engine=engine).with_structured_output(Color)
    stream = chat.stream("Which colour?")
    assert isinstance(next(stream), Color)
    stream.close()
    assert eventually(lambda: engine.stats().cancelled == 1)


def test_one_cut_answer_of_a_batch_leaves_the_others_their_values(make_engine):
    long = json.dumps({"name": "blue and " * 40})
    backend = MemoryBackend(lambda prompt: long if "long" in prompt else BLUE)
    chat = ChatRAGCache(engine=make_engine(backend), max_tokens=30).with_structured_output(Color)
    short, cut = chat.batch(["A short one?", "A long one?"], return_exceptions=True)
    assert short == Color(name="blue", red=3)
    assert isinstance(cut, AnswerCutShort)


def test_what_is_no_method_or_schema_is_refused(chat):
    with pytest.raises(ValueError, match="method"):
        chat.with_structured_output(Color, method="by_magic")
    with pytest.raises(ValueError, match="schema"):
        chat.with_structured_output()
    with pytest.raises(UnsupportedGuide):
        chat.invoke("Which?", guide=Guide.regex("[a-z]+"))


# Tools.


def test_a_call_the_model_makes_by_itself_is_read(chat_saying):
    message = chat_saying(f"Let me see.\n{CALL}").bind_tools([add, shout]).invoke("1 + 2?")
    assert message.content == "Let me see."
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
    assert call["id"]


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_calls_of_a_stream_add_up(chat_saying, way):
    model = chat_saying(f"Let me see.\n{CALL}\n{CALL}").bind_tools([add])

    async def read():
        return [chunk async for chunk in model.astream("1 + 2?")]

    message = merge_chunks(model.stream("1 + 2?") if way == "stream" else asyncio.run(read()))
    assert message.content == "Let me see."
    assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}] * 2
    assert len({call["id"] for call in message.tool_calls}) == 2
    assert message.usage_metadata["output_tokens"] > 0


def test_without_tools_the_form_of_a_call_is_text(chat_saying):
    message = chat_saying(CALL).invoke("1 + 2?")
    assert (message.content, message.tool_calls) == (CALL, [])
    none = chat_saying(CALL).bind_tools([add], tool_choice="none").invoke("1 + 2?")
    assert none.tool_calls == []


@pytest.mark.parametrize("choice", ["any", "required", True, "add", {"function": {"name": "add"}}])
def test_a_model_may_be_held_to_a_call(chat, choice):
    message = chat.bind_tools([add, shout], tool_choice=choice).invoke("1 + 2?")
    assert [call["name"] for call in message.tool_calls] == ["add"]
    assert message.tool_calls[0]["args"] == {"a": 0, "b": 0}
    streamed = merge_chunks(chat.bind_tools([add, shout], tool_choice=choice).stream("1 + 2?"))
    assert streamed.tool_calls[0]["args"] == {"a": 0, "b": 0}
    assert streamed.content == message.content == ""


def test_a_forced_call_streams_its_arguments(chat_saying):
    call = json.dumps({"name": "shout", "arguments": {"text": "one two three four"}})
    model = chat_saying(call).bind_tools([shout], tool_choice="any")
    chunks = list(model.stream("Shout."))
    parts = [part for chunk in chunks for part in chunk.tool_call_chunks]
    assert len(parts) > 3
    assert [part["name"] for part in parts if part["name"]] == ["shout"]
    message = merge_chunks(chunks)
    assert message.tool_calls[0]["args"] == {"text": "one two three four"}
    assert message.content == ""


def test_arguments_of_any_script_stay_as_they_are(chat_saying, chat, recorded):
    call = {"name": "shout", "arguments": {"text": "你好啊集团"}}
    said = f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
    message = chat_saying(said).bind_tools([shout]).invoke("?")
    assert message.tool_calls[0]["args"] == {"text": "你好啊集团"}
    chat.invoke([HumanMessage("?"), message, ToolMessage("!", tool_call_id="x")])
    assert "你好啊集团" in recorded[0][0]


def invoke(agent, asked):
    return agent.invoke(asked)["messages"]


def stream(agent, asked):
    return list(agent.stream(asked, stream_mode="values"))[-1]["messages"]


def stream_tokens(agent, asked):
    list(agent.stream(asked, stream_mode="messages"))
    return invoke(agent, asked)


def astream(agent, asked):
    async def read():
        return [values async for values in agent.astream(asked, stream_mode="values")]

    return asyncio.run(read())[-1]["messages"]


def stream_v3(agent, asked):
    if not hasattr(agent, "stream_events"):
        pytest.skip("this version of LangGraph has no v3 streaming")
    return agent.stream_events(asked, version="v3").output["messages"]


@pytest.mark.parametrize("output_version", ["v0", "v1"])
@pytest.mark.parametrize("run", [invoke, stream, stream_tokens, astream, stream_v3])
@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
def test_an_agent_calls_its_tools_and_answers(make_engine, output_version, run):
    create_agent = pytest.importorskip("langchain.agents").create_agent
    prompts = []

    def reply(prompt):
        prompts.append(prompt)
        return "The sum is 3." if "<tool>\n3\n</tool>" in prompt else f"Let me see.\n{CALL}"

    engine = make_engine(MemoryBackend(reply))
    chat = ChatRAGCache(engine=engine, temperature=0, output_version=output_version)
    messages = run(create_agent(chat, [add, shout]), {"messages": [("human", "1 + 2?")]})
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[-1].text == "The sum is 3."
    assert f"<assistant>\nLet me see.\n{CALL}\n</assistant>" in prompts[-1]


class StandardSuite(ChatModelIntegrationTests):
    chat_model_class = ChatRAGCache


@pytest.mark.parametrize("output_version", ["v0", "v1"])
def test_langchains_own_agent_loop_goes_round_once_the_model_calls(chat_saying, output_version):
    call = '<tool_call>{"name": "get_weather", "arguments": {"location": "SF"}}</tool_call>'
    StandardSuite().test_agent_loop(chat_saying(call, output_version=output_version))


SUM = {"type": "json_schema", "json_schema": {"name": "Color", "schema": COLOR_SCHEMA}}


def calls_or_answers(prompt):
    return BLUE if "<tool>\n3\n</tool>" in prompt else CALL


@pytest.mark.parametrize("output_version", ["v0", "v1"])
def test_an_agent_whose_answers_have_a_form_calls_its_tools(make_engine, output_version):
    agents = pytest.importorskip("langchain.agents")
    strategy = pytest.importorskip("langchain.agents.structured_output").ProviderStrategy
    engine = make_engine(MemoryBackend(calls_or_answers))
    chat = ChatRAGCache(engine=engine, temperature=0, output_version=output_version)
    agent = agents.create_agent(chat, [add, shout], response_format=strategy(Color))
    done = agent.invoke({"messages": [("human", "1 + 2?")]})
    assert [message.type for message in done["messages"]] == ["human", "ai", "tool", "ai"]
    assert done["structured_response"] == Color(name="blue", red=3)


@pytest.mark.parametrize("form", [SUM, Color])
def test_beside_tools_an_answer_is_a_call_or_has_its_form(make_engine, form):
    engine = make_engine(MemoryBackend(calls_or_answers))
    chat = ChatRAGCache(engine=engine).bind_tools([add, shout], response_format=form)
    asked = [HumanMessage("1 + 2?")]
    for ask in (chat.invoke, lambda asked: merge_chunks(chat.stream(asked))):
        call = ask(asked)
        assert (call.content, call.tool_calls[0]["args"]) == ("", {"a": 1, "b": 2})
        assert "parsed" not in call.additional_kwargs
        answer = ask([*asked, call, ToolMessage("3", tool_call_id=call.tool_calls[0]["id"])])
        assert (answer.content, answer.tool_calls) == (BLUE, [])
        if form is Color:
            assert answer.additional_kwargs["parsed"] == Color(name="blue", red=3)


def test_structured_output_beside_tools_has_no_value_for_a_call(make_engine):
    engine = make_engine(MemoryBackend(calls_or_answers))
    chat = ChatRAGCache(engine=engine)
    model = chat.with_structured_output(Color, include_raw=True, tools=[add])
    call = model.invoke("1 + 2?")
    assert call["raw"].tool_calls[0]["name"] == "add"
    assert (call["parsed"], call["parsing_error"]) == (None, None)
    result = ToolMessage("3", tool_call_id=call["raw"].tool_calls[0]["id"])
    answer = model.invoke([HumanMessage("1 + 2?"), call["raw"], result])
    assert (answer["parsed"], answer["parsing_error"]) == (Color(name="blue", red=3), None)
    with pytest.raises(ValueError, match="include_raw"):
        chat.with_structured_output(Color, tools=[add])


def test_a_form_that_leaves_no_room_for_calls_is_refused_beside_tools(chat):
    with pytest.raises(BadRequest, match="choice"):
        chat.bind_tools([add]).invoke("1 + 2?", guide=Guide.choice(["3", "4"]))


def test_a_call_that_is_cut_off_is_told_as_invalid(chat):
    model = chat.bind_tools([add], tool_choice="any", max_tokens=12)
    message = model.invoke("1 + 2?")
    assert message.tool_calls == []
    assert message.invalid_tool_calls[0]["name"] == "add"
    assert message.response_metadata["finish_reason"] == "length"


@pytest.mark.parametrize(
    "choice", ["sub", {"type": "tool", "name": "sub"}, {"function": {}, "name": "sub"}]
)
def test_a_tool_that_is_not_bound_cannot_be_chosen(chat, choice):
    with pytest.raises(BadRequest, match="sub"):
        chat.bind_tools([add], tool_choice=choice)


def test_tools_and_what_became_of_calls_reach_the_model(chat, recorded):
    conversation = [
        HumanMessage("1 + 2?"),
        AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "x"}]),
        ToolMessage("3", tool_call_id="x"),
    ]
    chat.bind_tools([add]).invoke(conversation)
    prompt = recorded[0][0]
    assert '"Add two numbers."' in prompt
    assert f"<assistant>\n{CALL}\n</assistant>" in prompt
    assert "<tool>\n3\n</tool>" in prompt


# Counting, saving, sharing.


def test_tokens_are_counted_as_the_engine_counts_them(chat):
    usage = chat.invoke(MESSAGES).usage_metadata
    assert chat.get_num_tokens_from_messages(MESSAGES) == usage["input_tokens"]
    with_tools = chat.bind_tools([add]).invoke(MESSAGES).usage_metadata
    assert chat.get_num_tokens_from_messages(MESSAGES, [add]) == with_tools["input_tokens"]


@pytest.mark.parametrize("kind", [ChatRAGCache, RAGCacheLLM])
def test_a_saved_model_is_loaded_with_an_engine_again(engine, kind):
    model = kind(engine=engine, temperature=0.3, guide=Guide.choice(["blue", "red"]), stop=["."])
    saved = dumps(model)
    assert "RAGCacheEngine" not in saved
    loaded = load(
        json.loads(saved),
        allowed_objects=[kind],
        valid_namespaces=["ragcache_integrations"],
        secrets_map={"RAGCACHE_ENGINE": engine},
    )
    assert loaded == model
    assert loaded.engine is engine


def test_the_engine_stays_out_of_what_is_serialized(chat):
    assert "engine" not in chat.model_dump()
    assert dumpd(chat)["kwargs"]["engine"]["type"] == "secret"


def test_an_engine_may_be_started_from_its_configuration():
    config = EngineConfig(model="any", backend="memory")
    for given in (config, config.model_dump_json()):
        chat = ChatRAGCache(engine=given)
        assert chat.invoke(MESSAGES).content == ANSWER
        chat.engine.close()
    with pytest.raises(ValueError, match="RAGCacheEngine"):
        ChatRAGCache(engine="SmolLM2")


def test_tenants_share_nothing(engine):
    ours, theirs = (ChatRAGCache(engine=engine, tenant=name) for name in ("us", "them"))
    ours.invoke("word " * 40)
    cached = [
        chat.invoke("word " * 40).usage_metadata["input_token_details"]["cache_read"]
        for chat in (theirs, ours)
    ]
    assert cached == [0, 48]


def test_a_model_of_another_tokenizer_counts_by_it(engine):
    chat = ChatRAGCache(engine=engine, custom_get_token_ids=lambda text: [1, 2])
    assert chat.get_num_tokens("word " * 40) == 2
    assert isinstance(engine, RAGCacheEngine)
