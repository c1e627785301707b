import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pydantic
import pytest
from langchain_community.llms import VLLM
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.load import dumpd
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField
from waiting import eventually

from ragcache_engine import (
    BadRequest,
    CachedTokens,
    EmptyPrompt,
    EngineClosed,
    Guide,
    PromptTooLong,
    UnsupportedGuide,
    Usage,
)
from ragcache_integrations.langchain import RAGCacheLLM
from ragcache_integrations.langchain.usage import usage_metadata

PROMPT = "Tell me one thing.\nWhy is the sky blue?"
ANSWER = "You asked: Why is the sky blue?"


class Recorder(BaseCallbackHandler):
    def __init__(self):
        self.tokens, self.results = [], []

    def on_llm_new_token(self, token, *, chunk=None, **kwargs):
        self.tokens.append((token, chunk.text))

    def on_llm_end(self, response, **kwargs):
        self.results.append(response)


@pytest.fixture
def llm(engine):
    return RAGCacheLLM(engine=engine, temperature=0)


async def join_chunks(chunks):
    return "".join([chunk async for chunk in chunks])


def test_every_way_of_asking_gives_the_same_answer(llm):
    assert llm.invoke(PROMPT) == ANSWER
    assert asyncio.run(llm.ainvoke(PROMPT)) == ANSWER
    assert "".join(llm.stream(PROMPT)) == ANSWER
    assert asyncio.run(join_chunks(llm.astream(PROMPT))) == ANSWER
    assert llm.batch([PROMPT, "Two?"]) == [ANSWER, "You asked: Two?"]
    assert asyncio.run(llm.abatch([PROMPT, "Two?"])) == [ANSWER, "You asked: Two?"]


def test_a_stream_comes_in_pieces(llm):
    assert len(list(llm.stream(PROMPT))) > 3


def test_a_conversation_becomes_a_prompt_as_for_any_llm(llm, recorded):
    llm.invoke([HumanMessage("Why?")])
    assert recorded[0][0] == "Human: Why?"


@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_the_prompts_of_a_batch_run_together(endless, how):
    llm = RAGCacheLLM(engine=endless)
    prompts = [f"Prompt number {number}?" for number in range(8)]

    def ask():
        return llm.batch(prompts) if how == "batch" else asyncio.run(llm.abatch(prompts))

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        assert eventually(lambda: endless.stats().running == 8)
        endless.close()
        assert isinstance(asking.exception(), EngineClosed)


def test_parameters_and_defaults_are_those_of_the_stock_class():
    ours, stock = RAGCacheLLM.model_fields, VLLM.model_fields
    shared = {
        "n",
        "temperature",
        "top_p",
        "top_k",
        "presence_penalty",
        "frequency_penalty",
        "stop",
        "ignore_eos",
        "max_new_tokens",
    }
    assert shared <= ours.keys()
    assert {name: ours[name].default for name in shared} == {
        name: stock[name].default for name in shared
    }


def test_sampling_parameters_reach_the_engine(engine, recorded):
    llm = RAGCacheLLM(engine=engine, temperature=0.5, top_k=3, seed=11)
    llm.invoke(PROMPT)
    llm.bind(temperature=0.7, max_tokens=9).invoke(PROMPT, stop=["x"])
    first, second = (options for _, options in recorded)
    assert (first.temperature, first.top_k, first.seed, first.max_tokens) == (0.5, 3, 11, 512)
    assert (second.temperature, second.top_k, second.max_tokens) == (0.7, 3, 9)
    assert second.stop == ("x",)


def test_max_tokens_ends_an_answer(llm):
    result = llm.generate([PROMPT], max_tokens=2)
    assert result.generations[0][0].text == "You asked"
    assert result.generations[0][0].generation_info["finish_reason"] == "length"


def test_stop_strings_end_an_answer(engine, llm):
    assert llm.invoke(PROMPT, stop=["the sky"]) == "You asked: Why is "
    assert "".join(llm.stream(PROMPT, stop=["the sky"])) == "You asked: Why is "
    assert RAGCacheLLM(engine=engine, stop=[":"]).invoke(PROMPT) == "You asked"


def test_stop_strings_of_a_call_replace_those_of_the_llm(engine):
    assert RAGCacheLLM(engine=engine, stop=[":"]).invoke(PROMPT, stop=["sky"]).endswith("the ")


def test_a_setting_of_the_model_is_refused_here(engine):
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        RAGCacheLLM(engine=engine, tensor_parallel_size=2)


def test_a_parameter_the_engine_does_not_have_is_refused(llm):
    with pytest.raises(BadRequest, match="logit_bias"):
        llm.invoke(PROMPT, logit_bias={1: 1.0})


def test_what_nobody_told_of_the_cache_is_left_out():
    unknown = Usage(40, 7, CachedTokens(), 0.25, 1.5, has_account=False)
    assert "input_token_details" not in usage_metadata(unknown)


def test_usage_stands_where_langchain_keeps_it(llm):
    llm.invoke("word " * 40)
    result = llm.generate(["word " * 40, PROMPT])
    tokens = result.llm_output["token_usage"]
    infos = [generation[0].generation_info for generation in result.generations]
    usages = [info["usage_metadata"] for info in infos]
    assert result.llm_output["model_name"] == "any"
    assert tokens["prompt_tokens"] == sum(usage["input_tokens"] for usage in usages)
    assert tokens["completion_tokens"] == sum(usage["output_tokens"] for usage in usages)
    assert tokens["total_tokens"] == sum(usage["total_tokens"] for usage in usages)
    assert usages[0]["input_token_details"] == {"cache_read": 32}
    assert (infos[0]["cached_tokens"], infos[0]["cached_tokens_device"]) == (32, 32)
    assert infos[0]["finish_reason"] == "stop"
    assert infos[0]["ttft_s"] > 0


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_the_last_chunk_of_a_stream_carries_the_usage(llm, way):
    recorder = Recorder()
    config = {"callbacks": [recorder]}
    if way == "stream":
        list(llm.stream(PROMPT, config))
    else:
        asyncio.run(join_chunks(llm.astream(PROMPT, config)))
    info = recorder.results[0].generations[0][0].generation_info
    asked = llm.generate([PROMPT]).generations[0][0].generation_info
    assert info["finish_reason"] == "stop"
    assert info["usage_metadata"]["output_tokens"] == asked["usage_metadata"]["output_tokens"]


def test_callbacks_hear_every_token_of_a_stream(llm):
    for ask in (
        lambda config: list(llm.stream(PROMPT, config)),
        lambda config: asyncio.run(join_chunks(llm.astream(PROMPT, config))),
    ):
        recorder = Recorder()
        ask({"callbacks": [recorder]})
        assert "".join(token for token, _ in recorder.tokens) == ANSWER
        assert all(token == chunk for token, chunk in recorder.tokens)


@pytest.mark.parametrize("way", ["generate", "agenerate"])
def test_one_bad_prompt_of_a_batch_cancels_the_others(endless, way):
    llm = RAGCacheLLM(engine=endless)
    prompts = [PROMPT, "word " * 9000]

    async def ask():
        with pytest.raises(PromptTooLong):
            await llm.agenerate(prompts)
        return await asyncio.to_thread(eventually, lambda: endless.stats().running == 0)

    if way == "agenerate":
        assert asyncio.run(ask())
    else:
        with pytest.raises(PromptTooLong):
            llm.generate(prompts)
        assert eventually(lambda: endless.stats().running == 0)
    assert endless.stats().finished == 0


def ask_batch(llm, how, inputs, config=None):
    if how == "batch":
        return llm.batch(inputs, config, return_exceptions=True)
    return asyncio.run(llm.abatch(inputs, config, return_exceptions=True))


@pytest.mark.parametrize("config", [None, {"max_concurrency": 2}], ids=["all at once", "by twos"])
@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_one_bad_prompt_of_a_batch_may_leave_the_others_their_answers(llm, how, config):
    first, too_long, last = ask_batch(llm, how, [PROMPT, "word " * 9000, "Two?"], config)
    assert (first, last) == (ANSWER, "You asked: Two?")
    assert isinstance(too_long, PromptTooLong)
    assert ask_batch(llm, how, []) == []


@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_the_prompts_of_a_batch_run_together_even_if_each_has_its_own_error(endless, how):
    prompts = [f"Prompt number {number}?" for number in range(40)]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_batch, RAGCacheLLM(engine=endless), how, prompts)
        assert eventually(lambda: endless.stats().running == 40)
        endless.close()
        assert all(isinstance(error, EngineClosed) for error in asking.result())


def test_an_empty_prompt_is_named(llm):
    with pytest.raises(EmptyPrompt):
        llm.invoke("")
    with pytest.raises(EmptyPrompt):
        next(llm.stream(""))


def test_the_usage_of_a_stream_is_that_of_the_whole_answer(llm):
    llm.invoke("word " * 40)
    recorder = Recorder()
    list(llm.stream("word " * 40, {"callbacks": [recorder]}))
    streamed = recorder.results[0].generations[0][0].generation_info["usage_metadata"]
    asked = llm.generate(["word " * 40]).generations[0][0].generation_info["usage_metadata"]
    assert streamed == asked
    assert streamed["input_token_details"]["cache_read"] == 32


@pytest.mark.parametrize(
    "guide",
    [
        Guide.json({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}),
        {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        pydantic.create_model("Number", n=int),
    ],
)
def test_answers_can_be_held_to_a_form(engine, recorded, guide):
    assert json.loads(RAGCacheLLM(engine=engine, guide=guide).invoke(PROMPT)) == {"n": 0}
    assert json.loads(RAGCacheLLM(engine=engine).bind(guide=guide).invoke(PROMPT)) == {"n": 0}
    assert recorded[0][1].guide == recorded[1][1].guide


def test_a_form_that_cannot_be_kept_is_named(engine, llm):
    with pytest.raises(UnsupportedGuide):
        llm.invoke(PROMPT, guide=Guide.regex("[a-z]+"))
    with pytest.raises(ValueError, match="guide"):
        RAGCacheLLM(engine=engine, guide="[a-z]+")


def test_parameters_can_be_left_to_the_configuration(engine, recorded):
    llm = RAGCacheLLM(engine=engine, temperature=0).configurable_fields(
        temperature=ConfigurableField(id="heat"), max_new_tokens=ConfigurableField(id="most")
    )
    llm.invoke(PROMPT, {"configurable": {"heat": 0.3, "most": 7}})
    assert (recorded[0][1].temperature, recorded[0][1].max_tokens) == (0.3, 7)


def test_tokens_are_counted_as_the_engine_counts_them(llm):
    usage = llm.generate([PROMPT]).llm_output["token_usage"]
    assert llm.get_num_tokens(PROMPT) == usage["prompt_tokens"]


def test_two_llms_that_answer_differently_identify_differently(engine, llm):
    other = RAGCacheLLM(engine=engine, temperature=0.3)
    assert llm.asdict() != other.asdict()
    assert llm.asdict()["model_name"] == "any"
    assert llm.asdict()["_type"] == "ragcache"


def test_tracing_learns_provider_model_and_limits(llm):
    traced = llm._get_ls_params()
    assert traced["ls_provider"] == "ragcache"
    assert traced["ls_model_name"] == "any"
    assert (traced["ls_temperature"], traced["ls_max_tokens"]) == (0, 512)


def test_the_engine_stays_out_of_what_is_serialized(llm):
    assert "engine" not in llm.model_dump()
    assert "RAGCacheEngine" not in str(dumpd(llm))
