"""A retriever as a tool of an agent: the model asks for documents, reads them and answers."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import create_retriever_tool

from ragcache_integrations.langchain import ChatRAGCache

pytestmark = pytest.mark.vllm

TOOL = "look_up"


class LookUpFirst(AgentMiddleware):
    """Has the model call the tool, and then answer: so small a model would not by itself."""

    def _held(self, request):
        is_looked_up = any(isinstance(message, ToolMessage) for message in request.messages)
        if is_looked_up:
            return request.override(tools=[])
        return request.override(tool_choice=TOOL)

    def wrap_model_call(self, request, handler):
        return handler(self._held(request))

    async def awrap_model_call(self, request, handler):
        return await handler(self._held(request))


@pytest.fixture
def agent_of(vllm_engine):
    def make(side):
        tool = create_retriever_tool(side.retriever, TOOL, "Looks up what is known of the world.")
        model = ChatRAGCache(engine=vllm_engine, temperature=0, max_tokens=48)
        return create_agent(model, [tool], middleware=[LookUpFirst()])

    return make


def asked(question):
    return {"messages": [HumanMessage(question)]}


def said(result):
    return [(type(message), message.content) for message in result["messages"]]
