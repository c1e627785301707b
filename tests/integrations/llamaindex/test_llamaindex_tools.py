"""Function calling: agents, programs and selectors of LlamaIndex with the engine's model."""

import asyncio
from typing import Literal

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ToolCallBlock
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.selectors import PydanticMultiSelector, PydanticSingleSelector
from llama_index.core.selectors.utils import get_selector_from_llm
from llama_index.core.tools import FunctionTool, ToolMetadata
from llama_index.core.types import PydanticProgramMode
from pydantic import BaseModel

from ragcache_engine import AnswerCutShort, BadRequest, NoChatTemplate, NoToolCall
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import RAGCacheLLM

QUESTION = "What is 1 + 2?"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


TOOLS = [FunctionTool.from_defaults(add), FunctionTool.from_defaults(shout)]


@pytest.fixture
def llm(engine):
    return RAGCacheLLM(engine=engine, temperature=0)


@pytest.fixture
def llm_saying(make_engine):
    """reply -> an LLM that gives this reply, whatever it is asked; a function replies to the prompt."""

    def make(reply):
        answer = reply if callable(reply) else lambda prompt: reply
        return RAGCacheLLM(engine=make_engine(MemoryBackend(answer)), temperature=0)

    return make


async def collect(stream):
    return [response async for response in await stream]


def every_way(llm, **options):
    """Ask with tools in every way, and return the last response of each."""
    yield llm.chat_with_tools(TOOLS, QUESTION, **options)
    yield asyncio.run(llm.achat_with_tools(TOOLS, QUESTION, **options))
    yield list(llm.stream_chat_with_tools(TOOLS, QUESTION, **options))[-1]
    yield asyncio.run(collect(llm.astream_chat_with_tools(TOOLS, QUESTION, **options)))[-1]


def test_a_call_that_the_model_makes_by_itself_is_read_in_every_way(llm_saying):
    llm = llm_saying(f"Let me see.\n{CALL}")
    for response in every_way(llm):
        assert response.message.content == "Let me see."
        (call,) = llm.get_tool_calls_from_response(response)
        assert (call.tool_name, call.tool_kwargs) == ("add", {"a": 1, "b": 2})
        assert call.tool_id
        assert response.additional_kwargs["completion_tokens"] > 0


@pytest.mark.parametrize("reply", [CALL, '{"sum": 3}'])
def test_beside_tools_an_answer_is_a_call_or_has_its_form(llm_saying, reply):
    form = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    for response in every_way(llm_saying(reply), guide=form):
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        assert [call.tool_kwargs for call in calls] == ([{"a": 1, "b": 2}] if reply == CALL else [])
        assert response.message.content == (None if reply == CALL else reply)


@pytest.mark.parametrize(
    "choice", [{"tool_required": True}, {"tool_choice": "required"}, {"tool_choice": "add"}]
)
def test_a_model_may_be_held_to_a_call(llm, choice):
    for response in every_way(llm, **choice):
        assert not response.message.content
        (call,) = llm.get_tool_calls_from_response(response)
        assert (call.tool_name, call.tool_kwargs) == ("add", {"a": 0, "b": 0})


def test_a_model_may_answer_in_words(llm, recorded):
    for response in every_way(llm):
        assert response.message.content == f"You asked: {QUESTION}"
        assert llm.get_tool_calls_from_response(response, error_on_no_tool_call=False) == []
        with pytest.raises(NoToolCall, match="tool_required=True"):
            llm.get_tool_calls_from_response(response)
    assert all("Add two numbers" in prompt for prompt, _ in recorded)


def test_of_several_calls_the_first_is_kept_unless_they_may_run_together(llm_saying):
    llm = llm_saying(f"{CALL}\n{CALL}")
    both = llm.chat_with_tools(TOOLS, QUESTION, allow_parallel_tool_calls=True)
    first = llm.chat_with_tools(TOOLS, QUESTION)
    assert len(llm.get_tool_calls_from_response(both)) == 2
    assert len(llm.get_tool_calls_from_response(first)) == 1
    assert len(first.message.additional_kwargs["tool_calls"]) == 1


def test_a_stream_of_words_and_a_call_gives_the_words_first(llm_saying):
    llm = llm_saying(f"Let me see.\n{CALL}")
    responses = list(llm.stream_chat_with_tools(TOOLS, QUESTION))
    assert "".join(response.delta for response in responses) == "Let me see."
    blocks = [b for b in responses[0].message.blocks if isinstance(b, ToolCallBlock)]
    assert blocks == []


def test_a_tool_is_not_called_with_half_of_its_arguments(llm):
    for response in every_way(llm, tool_required=True, max_tokens=12):
        with pytest.raises(AnswerCutShort, match="max_new_tokens"):
            llm.get_tool_calls_from_response(response)


def test_a_tool_that_is_not_given_cannot_be_chosen(llm):
    with pytest.raises(BadRequest, match="subtract"):
        llm.chat_with_tools(TOOLS, QUESTION, tool_choice="subtract")


def test_calls_and_their_results_reach_the_model(llm, recorded):
    call = ToolCallBlock(tool_call_id="x", tool_name="add", tool_kwargs={"a": 1, "b": 2})
    history = [
        ChatMessage(QUESTION),
        ChatMessage(role="assistant", blocks=[call]),
        ChatMessage("3", role="tool", additional_kwargs={"tool_call_id": "x"}),
    ]
    llm.chat_with_tools(TOOLS, chat_history=history)
    (prompt, _), *_ = recorded
    assert '"a": 1' in prompt
    assert "<tool>\n3\n</tool>" in prompt


def test_predict_and_call_calls_the_tool(llm, llm_saying):
    assert llm_saying(CALL).predict_and_call(TOOLS, QUESTION).response == "3"
    assert asyncio.run(llm_saying(CALL).apredict_and_call(TOOLS, QUESTION)).response == "3"
    assert llm.predict_and_call(TOOLS, QUESTION, tool_required=True).response == "0"
    with pytest.raises(NoToolCall):
        llm.predict_and_call(TOOLS, QUESTION)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_function_agent_calls_its_tools_and_answers(llm_saying, streaming):
    llm = llm_saying(lambda prompt: "It is 3." if "<tool>\n3\n</tool>" in prompt else CALL)

    async def ask():
        return await FunctionAgent(tools=[add, shout], llm=llm, streaming=streaming).run(QUESTION)

    output = asyncio.run(ask())
    assert str(output) == "It is 3."
    assert [result.tool_output.raw_output for result in output.tool_calls] == [3]


def test_a_workflow_takes_an_agent_that_calls_functions(llm, engine):
    def agent(llm):
        (agent,) = AgentWorkflow.from_tools_or_functions([add], llm=llm).agents.values()
        return type(agent).__name__

    assert agent(llm) == "FunctionAgent"
    without = RAGCacheLLM(engine=engine, is_function_calling_model=False)
    assert agent(without) == "ReActAgent"


class Verdict(BaseModel):
    """Whether the sky is blue."""

    colour: Literal["blue", "green"]
    sure: bool


def test_a_program_fills_in_its_class_by_a_call(llm, recorded):
    program = FunctionCallingProgram.from_defaults(Verdict, "Judge the {thing}.", llm=llm)
    assert isinstance(program(thing="sky"), Verdict)
    assert isinstance(asyncio.run(program.acall(thing="sky")), Verdict)
    forced = FunctionCallingProgram.from_defaults(
        Verdict, "Judge the {thing}.", llm=llm, tool_choice="required"
    )
    assert isinstance(list(forced.stream_call(thing="sky"))[-1], Verdict)
    assert all("Judge the sky." in prompt for prompt, _ in recorded)


def test_structured_prediction_guides_the_answer_unless_a_call_is_asked_for(engine, recorded):
    from llama_index.core.prompts import PromptTemplate

    def predict(**options):
        llm = RAGCacheLLM(engine=engine, temperature=0, **options)
        prompt = PromptTemplate("Judge the {thing}.")
        assert isinstance(llm.structured_predict(Verdict, prompt, thing="sky"), Verdict)
        return recorded[-1][1].guide.schema

    assert predict() == predict(pydantic_program_mode=PydanticProgramMode.DEFAULT)
    assert predict() == Verdict.model_json_schema()
    by_call = predict(pydantic_program_mode=PydanticProgramMode.FUNCTION)
    assert by_call["properties"]["name"] == {"const": "Verdict"}


def test_selectors_choose_by_a_call(llm):
    choices = [ToolMetadata("the sky", name="sky"), ToolMetadata("bees", name="bees")]
    single, several = (get_selector_from_llm(llm, is_multi=multi) for multi in (False, True))
    assert isinstance(single, PydanticSingleSelector)
    assert isinstance(several, PydanticMultiSelector)
    for selector in (single, several):
        chosen = selector.select(choices, "How do bees dance?")
        assert all(isinstance(selection.index, int) for selection in chosen.selections)


def test_a_model_without_a_chat_template_calls_no_functions(make_engine, monkeypatch):
    backend = MemoryBackend()

    def refuse(conversation):
        raise NoChatTemplate("none")

    monkeypatch.setattr(backend, "render", refuse)
    llm = RAGCacheLLM(engine=make_engine(backend))
    assert not llm.metadata.is_function_calling_model
    with pytest.raises(NoChatTemplate):
        llm.chat_with_tools(TOOLS, QUESTION)
