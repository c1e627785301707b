"""Writes conversations as prompts for a chat model, and reads the tool calls in its answers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ragcache_engine.chat import (
    GuidedReader,
    ToolReader,
    are_marked,
    call_guide,
    call_or_answer_guide,
    check_messages,
    check_template_args,
    check_tools,
    describe_tools,
    find_points,
    tool_names,
    without_marks,
)
from ragcache_engine.errors import RefusedMessages
from ragcache_engine.protocols import Conversation
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.values import ChatPrompt, SamplingOptions


class EngineChat:
    """The chat half of an engine, reached as `engine.chat`.

        >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...     prompt = engine.chat.prompt([{"role": "user", "content": "Why is the sky blue?"}])
        ...     engine.generate(prompt).text
        'You asked: Why is the sky blue?'

    Any thread may call any of its methods. They raise EngineClosed once the engine is closed.
    """

    def __init__(
        self,
        runtime: Runtime,
        chat_template: str | None,
        tool_parser: str | None,
        tells_reasoning: bool,
    ) -> None:
        """chat_template, tool_parser, tells_reasoning: as in EngineConfig."""
        self._runtime = runtime
        self._template = chat_template
        self._tool_parser = tool_parser
        self._tells_reasoning = tells_reasoning
        self._takes_tools: bool | None = None

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Write a conversation as the prompt that the model was trained on, by its chat template.

            prompt = engine.chat.prompt([{"role": "user", "content": "Why is the sky blue?"}])
            answer = engine.generate(prompt, documents)

        The request then has exactly the tokens that vLLM's own chat endpoint would make of the
        conversation. Calling this is cheap: the model computes nothing.
        messages: as in OpenAI's chat API; their contents are texts, which may hold a `cache_point`.
        tools: functions that the model may call, as in that API: {"type": "function", "function":
          {...}}. If the template has no place for tools, the system message describes them.
        add_generation_prompt: end the prompt with the text that begins the assistant's answer.
        continue_final_message: leave the last message open, so that the model continues it. That
          excludes add_generation_prompt.
        template_args: further variables of the template, such as {"enable_thinking": False}.
        Raises NoChatTemplate, or RefusedMessages for messages that the template cannot write.
        """
        if continue_final_message and add_generation_prompt:
            raise RefusedMessages(
                "a prompt that continues the last message begins no new answer: with "
                "continue_final_message=True, set add_generation_prompt=False"
            )
        marked = check_messages(messages)
        is_marked = are_marked(marked)
        messages = without_marks(marked) if is_marked else marked
        tools = check_tools(tools or ())
        conversation = Conversation(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template=self._template,
            template_args=check_template_args(template_args),
        )
        speaks_of_tools = tools or any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if speaks_of_tools and not self.takes_tools:
            in_words = describe_tools(conversation.messages, conversation.tools)
            conversation = replace(conversation, messages=in_words, tools=())
            marked = describe_tools(marked, tools) if is_marked else marked
        text = self._render(conversation)
        args = _plain_values(conversation.template_args) if self._tells_reasoning else None
        if not is_marked:
            return ChatPrompt(text, args)
        write_marked = partial(self._render, replace(conversation, messages=marked))
        return ChatPrompt(text, args, find_points(text, write_marked))

    @property
    def takes_tools(self) -> bool:
        """Whether the model's chat template has a place for tools.

        If it has none, `prompt` describes the tools in the system message. How well a model then
        calls them depends on the model. Raises NoChatTemplate.
        """
        if self._takes_tools is None:
            probe = {"name": "is_there_a_place", "description": "", "parameters": {}}
            conversation = Conversation(
                [{"role": "user", "content": "Hello."}],
                [{"type": "function", "function": probe}],
                template=self._template,
            )
            try:
                self._takes_tools = str(probe["name"]) in self._render(conversation)
            except RefusedMessages:
                self._takes_tools = False
        return self._takes_tools

    def tool_options(
        self,
        options: SamplingOptions,
        tools: Sequence[Mapping[str, Any]],
        *,
        must_call: bool = False,
        name: str | None = None,
    ) -> SamplingOptions:
        """Return the options for an answer in which the model may call these tools, or must.

        must_call: force the answer to be a call of one of the tools. name: force a call of this tool.
          Any model then writes a well-formed call, if max_tokens leaves room for it.
        With a guide to JSON in the options, the answer is a call or keeps to the guide; if it must be a
        call, that guide has no effect.
        Raises BadRequest if there is no such tool, or for a guide of another kind.
        """
        tools = check_tools(tools)
        if must_call or name is not None:
            return replace(options, guide=call_guide(tools, name))
        if tools and options.guide is not None:
            return replace(options, guide=call_or_answer_guide(tools, options.guide))
        if self._tool_parser is not None:
            return replace(options, skip_special_tokens=False)
        return options

    def tool_reader(
        self,
        tools: Sequence[Mapping[str, Any]],
        *,
        must_call: bool = False,
        is_guided: bool = False,
    ) -> ToolReader:
        """Return a reader of the tool calls in one answer, which may be whole or still streaming.

            reader = engine.chat.tool_reader(tools)
            answer = reader.whole(engine.generate(prompt, options=options).text)
            answer.text, answer.calls

        must_call: as given to `tool_options`; True also if you gave a name there.
        is_guided: whether the options that `tool_options` returned have a guide.
        """
        tools = check_tools(tools)
        if must_call:
            return GuidedReader()
        if is_guided:
            return GuidedReader(tool_names(tools))
        self._runtime.wait_until_up()
        return self._runtime.backend.tool_reader(tools)

    def _render(self, conversation: Conversation) -> str:
        self._runtime.wait_until_up()
        return self._runtime.backend.render(conversation)


def _plain_values(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return those variables of a template that parsers of reasoning ask for: switches and names."""
    return {name: value for name, value in args.items() if isinstance(value, str | int | float)}


def moved_to_chat(old: str, new: str) -> property:
    """Make a property that warns that `engine.old` is now `engine.chat.new`, and leads there."""

    def get(engine: Any) -> Any:
        warnings.warn(f"engine.{old} is now engine.chat.{new}", DeprecationWarning, stacklevel=2)
        return getattr(engine.chat, new)

    return property(get)
