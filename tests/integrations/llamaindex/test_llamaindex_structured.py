"""Structured prediction: answers that always fit the schema."""

import asyncio
import copy
from typing import Literal

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from pydantic import BaseModel, Field, ValidationError, field_validator

from ragcache_engine import AnswerCutShort, UnsupportedGuide
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why does the sky look blue and not violet?"


class Verdict(BaseModel):
    """Whether the sky is blue, and how sure that is."""

    colour: Literal["blue", "green", "red"]
    sure: bool
    stars: int = Field(ge=1, le=5)


PROMPT = PromptTemplate("Judge the colour of the {thing}.")


@pytest.fixture(params=["as a completion", "as a conversation"])
def llm(engine, request):
    return RAGCacheLLM(engine=engine, temperature=0, is_chat_model="convers" in request.param)


async def last_of(stream):
    async for item in await stream:
        last = item
    return last


def every_way(llm, output_cls=Verdict, **options):
    """Predict in every way.

    The prompt is copied, because LlamaIndex leaves its parser in the one it gets.
    """

    def ask(predict):
        return predict(output_cls, copy.deepcopy(PROMPT), llm_kwargs=options, thing="sky")

    yield ask(llm.structured_predict)
    yield asyncio.run(ask(llm.astructured_predict))
    yield list(ask(llm.stream_structured_predict))[-1]
    yield asyncio.run(last_of(ask(llm.astream_structured_predict)))


def test_every_way_of_predicting_fills_in_the_output_class(llm, recorded):
    for output in every_way(llm):
        assert Verdict.model_validate(output.model_dump())
    assert [options.guide.schema for _, options in recorded] == [Verdict.model_json_schema()] * 4


def test_a_call_may_say_its_own_options(llm, recorded):
    assert len(list(every_way(llm, max_tokens=99))) == 4
    assert {options.max_tokens for _, options in recorded} == {99}


def test_a_structured_llm_answers_in_json(llm):
    structured = llm.as_structured_llm(Verdict)
    whole = structured.chat([ChatMessage("Judge!")])
    later = asyncio.run(structured.achat([ChatMessage("Judge!")]))
    *_, streamed = structured.stream_chat([ChatMessage("Judge!")])
    for response in (whole, later, streamed):
        assert Verdict.model_validate_json(response.message.content)
    assert isinstance(whole.raw, Verdict)
    assert Verdict.model_validate_json(structured.complete("Judge!").text)


def test_a_query_engine_may_answer_in_an_output_class(llm, index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    queries = RetrieverQueryEngine.from_args(
        retriever, llm=llm.as_structured_llm(Verdict), response_mode="compact"
    )
    assert isinstance(queries.query(QUESTION).response, Verdict)
    assert isinstance(asyncio.run(queries.aquery(QUESTION)).response, Verdict)
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm, output_cls=Verdict)
    assert isinstance(queries.query(QUESTION).response, Verdict)


def test_an_answer_that_ends_inside_its_form_is_named(make_engine):
    for answer in ('{"colour": "bl', '{"colour": {"a": 1}, "st'):
        engine = make_engine(CutShort(lambda _, answer=answer: answer))
        llm = RAGCacheLLM(engine=engine)
        with pytest.raises(AnswerCutShort, match="max_new_tokens"):
            llm.structured_predict(Verdict, PromptTemplate("Judge."))
        with pytest.raises(AnswerCutShort, match="max_new_tokens"):
            asyncio.run(llm.astructured_predict(Verdict, PromptTemplate("Judge.")))


def test_an_answer_that_ends_in_endless_white_space_says_what_helps(make_engine):
    for answer in ('{"colour": "blue",' + "\n" * 20, "{" + "\n" * 20):
        engine = make_engine(CutShort(lambda _, answer=answer: answer))
        with pytest.raises(AnswerCutShort, match="disable_any_whitespace"):
            RAGCacheLLM(engine=engine).structured_predict(Verdict, PromptTemplate("Judge."))


class CutShort(MemoryBackend):
    """Ignores the guide, so that answers end inside their form, as when the tokens run out."""

    def _answer(self, request):
        from dataclasses import replace

        return super()._answer(replace(request, options=replace(request.options, guide=None)))


def test_what_a_schema_cannot_say_is_pydantics_to_refuse(engine):
    class Odd(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def refuse(cls, number):
            raise ValueError("never right")

    with pytest.raises(ValidationError, match="never right"):
        RAGCacheLLM(engine=engine).structured_predict(Odd, PromptTemplate("A number."))


def test_a_schema_that_cannot_guide_is_named_before_any_work(engine, recorded):
    class Patterned(BaseModel):
        code: str = Field(pattern="[a-z]+")

    with pytest.raises(UnsupportedGuide):
        RAGCacheLLM(engine=engine).structured_predict(Patterned, PromptTemplate("A code."))
    assert recorded == []


@pytest.mark.vllm
def test_the_real_model_cannot_leave_the_schema(vllm_engine):
    llm = RAGCacheLLM(engine=vllm_engine, temperature=0, max_tokens=96)
    whole = llm.structured_predict(Verdict, copy.deepcopy(PROMPT), thing="sky")
    *_, streamed = llm.stream_structured_predict(Verdict, copy.deepcopy(PROMPT), thing="sky")
    assert Verdict.model_validate(streamed.model_dump()) == whole


@pytest.mark.vllm
def test_the_real_model_fills_in_what_a_conversation_asks(vllm_engine):
    llm = RAGCacheLLM(engine=vllm_engine, temperature=0, max_tokens=96, is_chat_model=True)
    prompt = ChatPromptTemplate.from_messages([("user", "What colour is the clear sky at noon?")])
    assert llm.structured_predict(Verdict, prompt).colour == "blue"
