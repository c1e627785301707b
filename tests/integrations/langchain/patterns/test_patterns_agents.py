"""A retriever as an agent's tool: the model asks for documents, reads them, and answers."""

import asyncio
from dataclasses import replace

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import create_retriever_tool

pytestmark = pytest.mark.vllm

TOOL = "look_up"


class LookUpFirst(AgentMiddleware):
    """Makes the model call the tool before it answers. So small a model would not do so by itself."""

    def _held(self, request):
        is_looked_up = any(isinstance(message, ToolMessage) for message in request.messages)
        if is_looked_up:
            return request.override(tools=[])
        return request.override(tool_choice=TOOL)

    def wrap_model_call(self, request, handler):
        return handler(self._held(request))

    async def awrap_model_call(self, request, handler):
        return await handler(self._held(request))


def agent_of(side):
    tool = create_retriever_tool(side.retriever, TOOL, "Looks up what is known of the world.")
    return create_agent(side.llm, [tool], middleware=[LookUpFirst()])


def cached(message):
    return message.usage_metadata["input_token_details"]["cache_read"]


async def streamed(agent, asked):
    """Return the messages of a run, as `astream` yields them, one graph node after the other."""
    messages = [*asked["messages"]]
    async for update in agent.astream(asked, stream_mode="updates"):
        messages += [message for node in update.values() for message in node["messages"]]
    return {"messages": messages}


WAYS = {
    "invoke": lambda agent, asked: agent.invoke(asked),
    "astream": lambda agent, asked: asyncio.run(streamed(agent, asked)),
}


@pytest.fixture
def side(chat_swap):
    # A tool call needs more tokens than these answers.
    llm = chat_swap.ours.llm.model_copy(update={"max_new_tokens": 96})
    return replace(chat_swap.ours, llm=llm)


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_looks_up_reads_and_answers(side, chat_swap, questions, way, model_engine):
    model_engine.clear_cache()
    agent, asked = agent_of(side), {"messages": [HumanMessage(questions[0])]}
    result = WAYS[way](agent, asked)
    question, call, looked_up, answer = result["messages"]
    (made,) = call.tool_calls
    assert made["name"] == TOOL
    # The tool ran with the model's own words, and found what the stock retriever finds for them.
    documents = chat_swap.stock.retriever.invoke(made["args"]["query"])
    assert isinstance(looked_up, ToolMessage)
    assert looked_up.content == "\n\n".join(document.page_content for document in documents)
    # The model read them, and answers what stock vLLM answers to this prompt.
    recognised = answer.response_metadata["document_ids"]
    assert recognised == [document.id for document in documents]
    prompt = side.llm.render([question, call, looked_up])
    assert answer.content == chat_swap.stock.llm.completed(prompt, side.llm.max_tokens)
    again = WAYS[way](agent, asked)["messages"][-1]
    assert again.content == answer.content
    assert cached(again) > cached(answer)


def test_what_an_agent_looked_up_is_reused_when_the_talk_goes_on(side, questions, model_engine):
    model_engine.clear_cache()
    first = agent_of(side).invoke({"messages": [HumanMessage(questions[0])]})
    talk = [*first["messages"], HumanMessage("And at sunset?")]
    answer = agent_of(side).invoke({"messages": talk})["messages"][-1]
    assert isinstance(answer, AIMessage)
    ids = first["messages"][-1].response_metadata["document_ids"]
    assert answer.response_metadata["document_ids"] == ids
    documents_tokens = model_engine.tokenize(first["messages"][2].content)
    assert cached(answer) > len(documents_tokens)
