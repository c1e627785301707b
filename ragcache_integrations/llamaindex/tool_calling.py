"""Function calling: LlamaIndex's tools for the engine, and the calls in its answers for LlamaIndex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.utils import parse_partial_json
from llama_index.core.tools.types import BaseTool

from ragcache_engine import AnswerCutShort, FinishReason, NoToolCall

Tool = BaseTool | Mapping[str, Any]
"""A tool of LlamaIndex's, or one in the form of OpenAI's chat API."""


def describe_tool(tool: Tool) -> dict[str, Any]:
    """Return a tool in the form of OpenAI's chat API."""
    if isinstance(tool, Mapping):
        return dict(tool)
    return tool.metadata.to_openai_tool(skip_length_check=True)


class ToolCalling(FunctionCallingLLM):
    """LlamaIndex's function calling. `chat` and its variants take `tools` and `tool_choice`.

    tool_choice: "auto" leaves the choice to the model; "required" or "any" forces a call of one of the
      tools, and a tool's name a call of that tool, both by guided decoding; "none" forbids calls.
    """

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        tool_choice: str | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg
        if tool_choice is None:
            tool_choice = "required" if tool_required else "auto"
        return {
            "messages": [*(chat_history or ()), *([asked] if asked else ())],
            "tools": [describe_tool(tool) for tool in tools],
            "tool_choice": tool_choice,
            **kwargs,
        }

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        if not allow_parallel_tool_calls:
            _keep_first_call(response.message)
        return response

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the calls in a response of this LLM; of a stream's response, the calls so far.

        Raises AnswerCutShort if max_tokens cut a call off, because a tool must not be called with half
        of its arguments; NoToolCall if there are no calls and error_on_no_tool_call is True.
        """
        facts = response.additional_kwargs
        was_cut_short = facts.get("finish_reason") == FinishReason.LENGTH.value
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if was_cut_short and any(isinstance(call.tool_kwargs, str) for call in calls):
            raise AnswerCutShort(
                "the answer ended before its tool call was complete: raise max_new_tokens, or give the "
                "tool arguments that are shorter"
            )
        if error_on_no_tool_call and not calls:
            raise NoToolCall(
                f"the model called no tool; it said {response.message.content!r}: force a call with "
                f"tool_required=True, or allow answers in words with error_on_no_tool_call=False"
            )
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=arguments_so_far(call),
            )
            for call in calls
        ]


def arguments_so_far(call: ToolCallBlock) -> dict[str, Any]:
    """Return the arguments as far as they can be read."""
    if not isinstance(call.tool_kwargs, str):
        return call.tool_kwargs
    try:
        arguments = parse_partial_json(call.tool_kwargs)
    except ValueError:
        arguments = {}
    # If the model has written something else, the tool itself says which arguments it lacks.
    return arguments if isinstance(arguments, dict) else {}


def _keep_first_call(message: ChatMessage) -> None:
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    message.blocks = [block for block in message.blocks if block not in calls[1:]]
    if calls:
        message.additional_kwargs["tool_calls"] = message.additional_kwargs["tool_calls"][:1]
