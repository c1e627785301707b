import asyncio
import copy
import pickle
from itertools import pairwise

import llama_index.core
import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler, TokenCountingHandler
from llama_index.core.extractors import KeywordExtractor
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.schema import TextNode
from waiting import eventually

from ragcache_engine import (
    BadRequest,
    EmptyPrompt,
    EngineClosed,
    EngineConfig,
    EngineNeeded,
    Guide,
    NoChatTemplate,
    PromptTooLong,
)
from ragcache_integrations.llamaindex import RAGCacheLLM

PROMPT = "Tell me one thing.\nWhy is the sky blue?"
ANSWER = "You asked: Why is the sky blue?"
MESSAGES = [ChatMessage(role=MessageRole.USER, content="Why?")]


@pytest.fixture
def llm(engine):
    return RAGCacheLLM(engine=engine, temperature=0)


def collect_responses(coroutine):
    """Return all responses of an asynchronous stream."""

    async def collect():
        return [response async for response in await coroutine]

    return asyncio.run(collect())


COMPLETIONS = {
    "complete": lambda llm, prompt, **kw: llm.complete(prompt, **kw),
    "acomplete": lambda llm, prompt, **kw: asyncio.run(llm.acomplete(prompt, **kw)),
    "stream": lambda llm, prompt, **kw: list(llm.stream_complete(prompt, **kw))[-1],
    "astream": lambda llm, prompt, **kw: collect_responses(llm.astream_complete(prompt, **kw))[-1],
}
CHATS = {
    "chat": lambda llm, messages: llm.chat(messages),
    "achat": lambda llm, messages: asyncio.run(llm.achat(messages)),
    "stream": lambda llm, messages: list(llm.stream_chat(messages))[-1],
    "astream": lambda llm, messages: collect_responses(llm.astream_chat(messages))[-1],
}


@pytest.mark.parametrize("way", COMPLETIONS)
def test_every_way_of_completing_gives_the_same_answer(llm, way):
    assert COMPLETIONS[way](llm, PROMPT).text == ANSWER


@pytest.mark.parametrize("way", CHATS)
def test_every_way_of_chatting_goes_through_messages_to_prompt(engine, recorded, way):
    llm = RAGCacheLLM(engine=engine, messages_to_prompt=lambda messages: f"<{messages[0].content}>")
    response = CHATS[way](llm, MESSAGES)
    assert recorded[0][0] == "<Why?>"
    assert response.message.role == MessageRole.ASSISTANT
    assert response.message.content == "You asked: <Why?>"


def test_a_conversation_is_written_by_the_models_own_chat_template(llm, engine, recorded):
    llm.chat(MESSAGES)
    assert recorded[0][0] == engine.chat.prompt([{"role": "user", "content": "Why?"}])
    assert not recorded[0][1].add_special_tokens


def test_a_model_without_one_is_talked_to_as_the_framework_does(make_engine, recording):
    class Base(recording):
        def render(self, conversation):
            raise NoChatTemplate("a base model")

    backend = Base()
    RAGCacheLLM(engine=make_engine(backend)).chat(MESSAGES)
    assert backend.asked[0][0] == "user: Why?\nassistant: "


def test_chat_prompts_go_the_same_way_whether_predicted_or_chatted(engine, recorded):
    prompt = ChatPromptTemplate.from_messages([("system", "Be kind."), ("user", "Why {word}?")])
    for is_chat_model in (False, True):
        llm = RAGCacheLLM(engine=engine, is_chat_model=is_chat_model)
        llm.predict(prompt, word="blue")
        llm.chat(prompt.format_messages(word="blue"))
        assert llm.render(prompt, word="blue") == recorded[0][0]
    assert len({asked for asked, _ in recorded}) == 1


def test_a_chat_model_gets_its_query_prompts_as_conversations(engine, recorded):
    llm = RAGCacheLLM(engine=engine, is_chat_model=True, system_prompt="Be kind.")
    assert llm.metadata.is_chat_model
    template = PromptTemplate("Say {word}")
    llm.predict(template, word="moo")
    wanted = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Say moo"}]
    assert recorded[0][0] == engine.chat.prompt(wanted) == llm.render(template, word="moo")


def test_it_can_tell_the_prompt_that_predict_asks(engine, recorded):
    llm = RAGCacheLLM(
        engine=engine, system_prompt="Be kind.", completion_to_prompt=lambda prompt: f"[{prompt}]"
    )
    llm.predict(PromptTemplate("Say {word}"), word="moo")
    assert recorded[0][0] == llm.render(PromptTemplate("Say {word}"), word="moo")


def test_an_answer_keeps_to_a_guide(llm, recorded):
    for response in (
        llm.complete(PROMPT, guide=Guide.choice(["yes", "no"])),
        list(llm.stream_complete(PROMPT, guide=Guide.choice(["yes", "no"])))[-1],
        asyncio.run(llm.acomplete(PROMPT, guide=Guide.choice(["yes", "no"]))),
    ):
        assert response.text == "yes"
    with pytest.raises(ValueError, match="guide takes a Guide"):
        llm.complete(PROMPT, guide="yes")


def test_what_an_answer_cost_is_never_read_back_to_the_model(llm, recorded):
    reply = llm.chat(MESSAGES)
    llm.chat([*MESSAGES, reply.message])
    assert "tokens" not in recorded[1][0]
    assert reply.additional_kwargs["finish_reason"] == "stop"


@pytest.mark.parametrize("way", COMPLETIONS)
def test_a_prompt_is_wrapped_unless_it_is_formatted_already(engine, recorded, way):
    llm = RAGCacheLLM(engine=engine, completion_to_prompt=lambda prompt: f"[{prompt}]")
    COMPLETIONS[way](llm, "Why?")
    COMPLETIONS[way](llm, "Why?", formatted=True)
    assert [prompt for prompt, _ in recorded] == ["[Why?]", "Why?"]


def test_a_predicted_template_is_wrapped_once(engine, recorded):
    llm = RAGCacheLLM(engine=engine, completion_to_prompt=lambda prompt: f"[{prompt}]")
    llm.predict(PromptTemplate("Say {word}"), word="moo")
    asyncio.run(llm.apredict(PromptTemplate("Say {word}"), word="moo"))
    assert [prompt for prompt, _ in recorded] == ["[Say moo]", "[Say moo]"]


def test_streamed_responses_carry_the_text_so_far_and_what_is_new(llm):
    for responses in (
        list(llm.stream_complete(PROMPT)),
        collect_responses(llm.astream_complete(PROMPT)),
    ):
        assert len(responses) > 3
        assert "".join(response.delta for response in responses) == ANSWER
        for before, after in pairwise(responses):
            assert after.text == before.text + after.delta


def test_the_defaults_are_those_of_vllm_in_llamaindex(engine):
    assert RAGCacheLLM(engine=engine).sampling_parameters() == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": 512,
        "stop": None,
        "ignore_eos": False,
        "seed": None,
        "guide": None,
    }


def test_sampling_parameters_reach_the_engine(engine, recorded):
    llm = RAGCacheLLM(engine=engine, temperature=0.5, top_k=3, seed=11)
    llm.complete(PROMPT)
    llm.complete(PROMPT, temperature=0.7, max_tokens=9, stop=["x"])
    first, second = (options for _, options in recorded)
    assert (first.temperature, first.top_k, first.seed, first.max_tokens) == (0.5, 3, 11, 512)
    assert (second.temperature, second.top_k, second.max_tokens) == (0.7, 3, 9)
    assert second.stop == ("x",)


@pytest.mark.parametrize("way", COMPLETIONS)
def test_stop_strings_and_max_tokens_end_an_answer(llm, way):
    stopped = COMPLETIONS[way](llm, PROMPT, stop=["the sky"])
    assert stopped.text == "You asked: Why is "
    short = COMPLETIONS[way](llm, PROMPT, max_tokens=2)
    assert (short.text, short.additional_kwargs["finish_reason"]) == ("You asked", "length")


def test_a_setting_of_the_model_is_refused_here(engine):
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        RAGCacheLLM(engine=engine, tensor_parallel_size=2)


def test_no_callback_manager_may_be_given_as_none(engine):
    assert RAGCacheLLM(engine=engine, callback_manager=None).complete(PROMPT).text == ANSWER


@pytest.mark.parametrize("way", COMPLETIONS)
def test_usage_stands_where_llamaindex_keeps_it(llm, way):
    COMPLETIONS[way](llm, "word " * 40)
    response = COMPLETIONS[way](llm, "word " * 40)
    cost = response.additional_kwargs
    assert cost["total_tokens"] == cost["prompt_tokens"] + cost["completion_tokens"]
    assert cost["cached_tokens"] == cost["cached_tokens_device"] == 32
    assert (cost["cached_tokens_host"], cost["cached_tokens_disk"]) == (0, 0)
    assert cost["finish_reason"] == "stop"
    assert cost["ttft_s"] > 0
    assert response.raw["usage"]["prompt_tokens"] == cost["prompt_tokens"]


@pytest.mark.parametrize("way", [*COMPLETIONS, *(f"{way} of a chat" for way in CHATS)])
def test_the_token_counter_counts_what_the_engine_counted(engine, way):
    counter = TokenCountingHandler(tokenizer=lambda text: ["wrong"] * 1000)
    llm = RAGCacheLLM(engine=engine, callback_manager=CallbackManager([counter]))
    if way in COMPLETIONS:
        cost = COMPLETIONS[way](llm, PROMPT).additional_kwargs
    else:
        cost = CHATS[way.split()[0]](llm, MESSAGES).additional_kwargs
    assert counter.prompt_llm_token_count == cost["prompt_tokens"] == engine.stats().prompt_tokens
    assert counter.completion_llm_token_count == cost["completion_tokens"]


def test_the_engines_tokenizer_counts_for_llamaindex(llm, engine, monkeypatch):
    monkeypatch.setattr(llama_index.core, "global_tokenizer", None)
    Settings.tokenizer = llm.tokenize
    words = "one two three"
    ids = list(engine.tokenize(words).token_ids)
    assert Settings.tokenizer(words) == TokenCountingHandler().tokenizer(words) == ids


def test_metadata_tells_the_models_limits(llm, engine):
    metadata = llm.metadata
    assert metadata.context_window == engine.limits.context_tokens
    assert (metadata.num_output, metadata.model_name) == (512, "any")
    assert not metadata.is_chat_model


@pytest.fixture
def traced(endless):
    """An LLM whose callbacks keep everything they get, including exceptions with their frames."""
    trace = LlamaDebugHandler(print_trace_on_end=False)
    return RAGCacheLLM(engine=endless, callback_manager=CallbackManager([trace]))


@pytest.mark.parametrize("way", ["stream_complete", "stream_chat"])
def test_leaving_a_stream_early_cancels_the_request(traced, endless, way):
    for _ in getattr(traced, way)(PROMPT if "complete" in way else MESSAGES):
        break
    assert eventually(lambda: endless.stats().cancelled == 1)
    assert endless.stats().running == 0


@pytest.mark.parametrize("way", ["stream_complete", "stream_chat"])
def test_closing_a_stream_that_was_never_read_cancels_the_request(traced, endless, way):
    stream = getattr(traced, way)(PROMPT if "complete" in way else MESSAGES)
    stream.close()  # and it is still held
    assert eventually(lambda: endless.stats().cancelled == 1)


@pytest.mark.parametrize("way", ["astream_complete", "astream_chat"])
def test_leaving_an_async_stream_early_cancels_the_request(traced, endless, way):
    async def leave():
        stream = await getattr(traced, way)(PROMPT if "complete" in way else MESSAGES)
        async for _ in stream:
            break
        await stream.aclose()
        return await asyncio.to_thread(eventually, lambda: endless.stats().cancelled == 1)

    assert asyncio.run(leave())


def test_cancelling_the_task_cancels_the_request(endless):
    async def cancel():
        task = asyncio.create_task(RAGCacheLLM(engine=endless).acomplete(PROMPT))
        while endless.stats().running < 1:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(eventually, lambda: endless.stats().cancelled == 1)

    assert asyncio.run(cancel())


@pytest.mark.parametrize("way", COMPLETIONS)
@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("", {}, EmptyPrompt),
        ("word " * 9000, {}, PromptTooLong),
        (PROMPT, {"logit_bias": {1: 1.0}}, BadRequest),
        (PROMPT, {"top_p": 7}, BadRequest),
    ],
)
def test_bad_input_is_named(llm, engine, way, prompt, options, error):
    with pytest.raises(error):
        COMPLETIONS[way](llm, prompt, **options)
    assert engine.stats().finished == 0


def test_bad_input_of_a_stream_is_named_by_the_call_itself(llm):
    with pytest.raises(EmptyPrompt):
        llm.stream_complete("")


@pytest.mark.parametrize("way", COMPLETIONS)
def test_a_closed_engine_is_named(llm, engine, way):
    engine.close()
    with pytest.raises(EngineClosed):
        COMPLETIONS[way](llm, PROMPT)


def test_the_engine_stays_out_of_what_is_serialized(llm):
    assert "engine" not in llm.to_dict()
    assert llm.to_dict()["temperature"] == 0
    assert llm.class_name() == "RAGCacheLLM"


def test_it_is_restored_on_an_engine(engine):
    llm = RAGCacheLLM(engine=engine, temperature=0, stop=["."], system_prompt="Be kind.")
    for restored in (
        RAGCacheLLM.from_dict(llm.to_dict(), engine=engine),
        RAGCacheLLM.from_json(llm.to_json(), engine=engine),
    ):
        assert restored.to_dict() == llm.to_dict()
        assert restored.complete(PROMPT).text == llm.complete(PROMPT).text


def make_llm(model="any", vllm_args=None, dedupe=False, **options):
    config = EngineConfig(model=model, backend="memory", dedupe=dedupe, vllm_args=vllm_args or {})
    return RAGCacheLLM(engine=config, temperature=0, **options)


def completion_in_capitals(prompt):
    return prompt.upper()


OTHERS = {
    "another model": {"model": "another"},
    "another precision": {"vllm_args": {"dtype": "float16"}},
    "prompts without repeats": {"dedupe": True},
    "another temperature": {"seed": 3},
    "another form of the prompt": {"completion_to_prompt": completion_in_capitals},
    "another wrapper": {"query_wrapper_prompt": PromptTemplate("Say: {query_str}")},
}


@pytest.mark.parametrize("other", OTHERS)
def test_an_ingestion_cache_tells_llms_apart_that_answer_differently(other):
    def hash_of(llm):
        node = TextNode(text="The tides follow the moon.")
        return get_transformation_hash([node], KeywordExtractor(llm=llm))

    assert hash_of(make_llm()) == hash_of(make_llm())
    assert hash_of(make_llm(**OTHERS[other])) != hash_of(make_llm())


def test_what_is_saved_names_the_model_and_can_be_restored_on_another(engine):
    saved = make_llm(model="another").to_dict()
    assert saved["model"] == "another"
    assert RAGCacheLLM.from_dict(saved, engine=engine).to_dict()["model"] == "any"


def test_without_an_engine_it_cannot_be_restored(llm):
    with pytest.raises(EngineNeeded, match="engine=engine"):
        RAGCacheLLM.from_dict(llm.to_dict())
    with pytest.raises(EngineNeeded):
        RAGCacheLLM.from_json(llm.to_json())


def test_it_cannot_be_pickled_and_its_copies_ask_the_same_engine(llm, engine):
    with pytest.raises(EngineNeeded, match="to_dict"):
        pickle.dumps(llm)
    for twin in (copy.copy(llm), copy.deepcopy(llm), llm.model_copy(update={"seed": 3})):
        assert twin.engine is engine
        assert twin.complete(PROMPT).text == ANSWER


def test_it_is_the_llm_of_the_settings(llm, monkeypatch):
    monkeypatch.setattr(Settings, "_llm", None)
    Settings.llm = llm
    assert Settings.llm is llm
