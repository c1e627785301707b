"""ChatRAGCache: the engine as a LangChain chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field

from ragcache_engine import (
    Answer,
    ChatPrompt,
    Piece,
    SamplingOptions,
    ToolAnswer,
    ToolAnswerPart,
)
from ragcache_integrations.bound_tools import BoundTools
from ragcache_integrations.chat_request import ChatRequest
from ragcache_integrations.langchain.messages import chat_chunk, chat_result, conversation
from ragcache_integrations.langchain.model_base import EngineModel, one_thread_each
from ragcache_integrations.langchain.stream_cancellation import CancellableStream
from ragcache_integrations.langchain.structured import (
    Method,
    Schema,
    add_parsed,
    bind_structured_output,
    guide_for_response_format,
)


class ChatRAGCache(EngineModel, BaseChatModel):
    """A chat model on the engine. It writes conversations with the model's own chat template.

        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> chat = ChatRAGCache(engine=engine, temperature=0, max_tokens=64)
        >>> message = chat.invoke([("system", "Be brief."), ("human", "Why is the sky blue?")])
        >>> message.content
        'You asked: Why is the sky blue?'
        >>> message.usage_metadata["input_token_details"]["cache_read"]
        0

    (`backend="memory"` answers without a model; leave it out for real answers.) The engine
    recognises the documents that a RAGCacheRetriever found, in whichever message they are. With
    structured output, every token keeps to the schema:

        >>> schema = {"title": "Color", "type": "object", "required": ["name"],
        ...           "properties": {"name": {"enum": ["blue", "red"]}}}
        >>> chat.with_structured_output(schema).invoke("Which colour has the sky?")
        {'name': 'blue'}
        >>> engine.close()

    engine: a running engine, which several models may share; or an EngineConfig, to start one.
    temperature, max_tokens, top_p, stop, guide, ...: see SamplingFields. A call may set any of them
      for itself, and `configurable_fields` may expose them. A call's `stop` replaces the model's.
      A call may give OpenAI's `response_format` in place of `guide`.
    template_args: more variables of the chat template, such as {"enable_thinking": False}. A call may
      also give OpenAI's `reasoning_effort`, which becomes the variable of that name.
    tenant: whose cached tensors the requests may use; conversations of different tenants share nothing.
    exact: borrow nothing from other contexts, even if the engine has reuse="anywhere".
    timeout: end a request with RequestTimedOut that has no whole answer after so many seconds.
    logprobs, top_logprobs: tell in response_metadata["logprobs"] how likely the tokens were, in OpenAI's
      form. A call may set all of these for itself.
    streaming: whether to answer through `stream` even if the caller wants the whole answer.

    An answer's usage_metadata says what the answer cost (input_token_details has cache_read); its
    response_metadata has cached_tokens (in total and by tier), finish_reason, ttft_s, document_ids and
    speculation. In a stream, the last chunk has them. With the engine's reasoning_parser, what the model
    thought is a block {"type": "reasoning"} of content_blocks, and not in the content.

    The model's chat template describes the tools to the model; if it has no place for them, the
    system message does. With tool_choice="any" or a tool's name, the answer of any model is a valid
    call. Otherwise a model calls tools as well as it was trained to.

    Calls raise BadRequest for requests that cannot be served (RefusedMessages for images and other
    content that is not text, NoChatTemplate, PromptTooLong, UnsupportedGuide, a parameter the engine
    does not have), and EngineError if the engine cannot finish. Leaving a stream early or cancelling
    the task cancels the request.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    template_args: dict[str, Any] = Field(default_factory=dict)
    streaming: bool = False

    @property
    def _llm_type(self) -> str:
        return "ragcache-chat"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return super()._get_ls_params(self.stop if stop is None else stop, **kwargs)

    def _get_invocation_params(
        self, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        return super()._get_invocation_params(self.stop if stop is None else stop, **kwargs)

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            name=self.model_name,
            max_input_tokens=self.engine.limits.context_tokens,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            pdf_inputs=False,
            tool_calling=True,
            tool_choice=True,
            tool_call_streaming=True,
            reasoning_output=self.engine.config.tells_reasoning,
            temperature=True,
        )

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**super()._identifying_params, "template_args": self.template_args}

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # LangChain's own key for its cache of answers is the model's saved form, and that has no engine.
        return str(sorted(self._get_invocation_params(stop=stop, **kwargs).items()))

    def render(
        self,
        input: LanguageModelInput,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ChatPrompt:
        """Return the prompt that the engine gets for this input.

        A retriever's `template` may call it, so that even the first prompt can be started early:
        `template=lambda question, documents: chat.render(prompt.invoke(...))`.
        Raises NoChatTemplate or RefusedMessages.
        """
        messages = self._convert_input(input).to_messages()
        return self._prompt(messages, BoundTools(tools or ()), self.template_args)

    def get_token_ids(self, text: str) -> list[int]:
        """Return the text's tokens, by the tokenizer of the engine's model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self.engine.tokenize(text).token_ids)

    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
    ) -> int:
        """Count the tokens of the prompt that these messages make.

        The chat template's own tokens count too.
        """
        converted = [convert_to_openai_tool(tool) for tool in tools or ()]
        return len(self.engine.tokenize(self.render(list(messages), tools=converted)))

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools that it may call, or must call.

        tool_choice: "auto" leaves the choice to the model; "any" or True forces a call of one of
          the tools, and a tool's name a call of that tool, both by guided decoding; "none" forbids
          calls. With a `response_format` and "auto", the answer is a call or has that form.
        kwargs: sampling parameters for these calls. `strict` changes nothing, because a forced call
          always fits its tool's schema.
        Raises BadRequest if tool_choice names no tool.
        """
        converted = [convert_to_openai_tool(tool) for tool in tools]
        BoundTools.from_choice(converted, tool_choice)
        kwargs.pop("strict", None)
        return self.bind(tools=converted, tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self,
        schema: Schema | None = None,
        *,
        include_raw: bool = False,
        method: Method = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return the model with answers that are values of a schema: Pydantic instances, or dicts.

        schema: a Pydantic class, a TypedDict, a JSON schema or a function in OpenAI's form. The
          model does not see the schema, so the prompt must describe the wanted values.
        include_raw: return {"raw": message, "parsed": value or None, "parsing_error": error or
          None} instead of raising the error if the answer cannot be parsed, or is cut off.
        method: "json_schema" holds the answer to the schema; "function_calling" makes the answer a
          tool call, and shows the model the schema as a tool; "json_mode" holds the answer to any
          JSON object.
        strict: accepted because other chat models have it. Guided answers always fit the schema.
        kwargs: sampling parameters for these calls; and `tools`, which the model may call instead. These
          need method "json_schema" and include_raw, because of a call there is no value.
        Raises ValueError for another method, or for an object that is not a schema. The runnable's calls
        raise AnswerCutShort if max_tokens or a stop string ended the answer before its form was
        complete; in a stream, after the pieces that came.
        """
        return bind_structured_output(self, schema, method, include_raw, kwargs)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        configs = one_thread_each(config, len(inputs))
        return super().batch(inputs, configs, return_exceptions=return_exceptions, **kwargs)

    def transform(
        self,
        input: Iterator[LanguageModelInput],
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessage]:
        return CancellableStream(super().transform(input, config, **kwargs))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        answer = self.engine.generate(
            request.prompt, None, request.options, **self.request_settings(kwargs)
        )
        return self._result(answer, request.read_answer(answer), kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = await self._arequest(messages, stop, kwargs)
        answer = await self.engine.agenerate(
            request.prompt, None, request.options, **self.request_settings(kwargs)
        )
        return self._result(answer, await request.aread_answer(answer), kwargs)

    def _result(self, answer: Answer, read: ToolAnswer, changes: Mapping[str, Any]) -> ChatResult:
        result = chat_result(answer, read, self.model_name)
        add_parsed(result.generations[0].message, changes.get("response_format"), read.text)
        return result

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs)
        with self.engine.stream(
            request.prompt, None, request.options, **self.request_settings(kwargs)
        ) as pieces:
            text = ""
            for piece in pieces:
                part = request.read_piece(piece) or ToolAnswerPart()
                text += part.text
                if part.text or part.calls or piece.reasoning or piece.usage or piece.logprobs:
                    yield self._chunk(piece, part, kwargs, text)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = await self._arequest(messages, stop, kwargs)
        async with aclosing(
            self.engine.astream(
                request.prompt, None, request.options, **self.request_settings(kwargs)
            )
        ) as pieces:
            text = ""
            async for piece in pieces:
                part = await request.aread_piece(piece) or ToolAnswerPart()
                text += part.text
                if part.text or part.calls or piece.reasoning or piece.usage or piece.logprobs:
                    yield self._chunk(piece, part, kwargs, text)

    def _chunk(
        self, piece: Piece, part: ToolAnswerPart, changes: Mapping[str, Any], text: str
    ) -> ChatGenerationChunk:
        """Return a piece of a stream as a chunk. text: the answer so far, without its calls."""
        chunk = chat_chunk(piece, part, self.model_name)
        if piece.finish_reason:
            add_parsed(chunk.message, changes.get("response_format"), text)
        return chunk

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Raise BadRequest or ValueError if a call with these options would; nothing is computed."""
        self._read_call(None, options)

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, changes: Mapping[str, Any]
    ) -> ChatRequest:
        bound, template_args, options = self._read_call(stop, changes)
        prompt = self._prompt(messages, bound, template_args)
        return ChatRequest(prompt, options, bound.make_reader(self.engine, options), self.engine)

    async def _arequest(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, changes: Mapping[str, Any]
    ) -> ChatRequest:
        # In a thread: a template may be long, a server far away, and a model may just start again.
        return await self.engine.threads.render(partial(self._request, messages, stop, changes))

    def _read_call(
        self, stop: list[str] | None, changes: Mapping[str, Any]
    ) -> tuple[BoundTools, dict[str, Any], SamplingOptions]:
        """Return a call's tools, variables of the chat template, and sampling options."""
        changes = {
            name: value for name, value in changes.items() if name not in _NO_SAMPLING_PARAMETERS
        }
        bound = BoundTools.from_choice(changes.pop("tools", None), changes.pop("tool_choice", None))
        template_args = {**self.template_args, **changes.pop("template_args", {})}
        if (effort := changes.pop("reasoning_effort", None)) is not None:
            template_args["reasoning_effort"] = effort
        if stop is not None:
            changes["stop"] = stop
        if (response_format := changes.pop("response_format", None)) is not None:
            changes.setdefault("guide", guide_for_response_format(response_format))
        options = bound.add_to_options(self.engine, self.sampling_options(changes))
        return bound, template_args, options

    def _prompt(
        self, messages: Sequence[BaseMessage], bound: BoundTools, template_args: Mapping[str, Any]
    ) -> ChatPrompt:
        return self.engine.chat.prompt(
            conversation(messages), tools=bound.tools, template_args=template_args
        )


_NO_SAMPLING_PARAMETERS = ("stream", "parallel_tool_calls", "ls_structured_output_format")
