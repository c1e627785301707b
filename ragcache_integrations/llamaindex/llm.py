"""RAGCacheLLM: the engine as a LlamaIndex LLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Self

from llama_index.core.base.llms.generic_utils import (
    messages_to_prompt as generic_messages_to_prompt,
)
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.types import TokenGen
from pydantic import ConfigDict, Field, computed_field, field_validator, model_validator

from ragcache_engine import (
    Answer,
    EngineNeeded,
    NoChatTemplate,
    Piece,
    SamplingOptions,
    ToolAnswerPart,
)
from ragcache_integrations.bound_tools import BoundTools
from ragcache_integrations.chat_request import ChatRequest
from ragcache_integrations.engine_field import Engine
from ragcache_integrations.llamaindex.chat_cancellation import (
    cancel_when_chat_is_left,
    ended_when_chat_is_left,
)
from ragcache_integrations.llamaindex.conversations import as_messages, write_conversation
from ragcache_integrations.llamaindex.cost import cost_recorder
from ragcache_integrations.llamaindex.identity import fingerprint
from ragcache_integrations.llamaindex.query_errors import query_errors
from ragcache_integrations.llamaindex.responses import (
    MessageSoFar,
    chat_response,
    completion,
    completion_so_far,
)
from ragcache_integrations.llamaindex.streams import (
    release_when_closed,
    report_astream,
    report_stream,
)
from ragcache_integrations.llamaindex.structured import GuidedPrediction
from ragcache_integrations.llamaindex.tool_calling import ToolCalling, describe_tool
from ragcache_integrations.model_repr import describe_model
from ragcache_integrations.sampling import SamplingFields


class RAGCacheLLM(SamplingFields, GuidedPrediction, ToolCalling):
    """The engine in place of LlamaIndex's `Vllm`, with the same parameters and defaults.

        llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=64)
        query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

    Examples:
        `backend="memory"` is an engine without a model. It answers with the prompt's last line:

        >>> from llama_index.core.llms import ChatMessage
        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> from ragcache_integrations.llamaindex import RAGCacheLLM
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> llm = RAGCacheLLM(engine=engine, temperature=0)
        >>> str(llm.complete("Why is the sky blue?"))
        'You asked: Why is the sky blue?'
        >>> response = llm.chat([ChatMessage("Why is the sea?")])
        >>> response.message.content, response.raw["usage"]["completion_tokens"]
        ('You asked: Why is the sea?', 8)
        >>> len(llm.tokenize("one two three"))  # Settings.tokenizer = llm.tokenize
        3
        >>> engine.close()

    Parameters of the model itself (dtype, tensor_parallel_size, ...) belong in the engine's
    configuration and are refused here. A call may set any sampling parameter for itself:
    `llm.complete(prompt, temperature=0.7, max_tokens=32, stop=["."])`. It may also set a form that
    its answer keeps to, such as `guide=Guide.choice(["yes", "no"])`.

    engine: a running engine, which several LLMs may share; or an EngineConfig, to start one.
    tenant: whose cached tensors the requests may use; prompts of different tenants share nothing.
    exact: borrow nothing from other contexts, even if the engine has reuse="anywhere".
    is_chat_model: whether query engines send their prompts as conversations, which is what an
      instruction-tuned model expects. False by default, as for `Vllm`, so that a swap changes no
      prompt.
    is_function_calling_model: whether agents and programs may give it tools. By default, if the model
      has a chat template, which describes the tools to the model; if it has no place for them, the
      system message does. With tool_required=True or a tool_choice, the answer of any model is a valid
      call. Otherwise a model calls tools as well as it was trained to.

    A prompt goes through completion_to_prompt unless the call says formatted=True, as query engines
    do. If messages_to_prompt is given, it writes conversations; otherwise the model's chat template
    does, always if there are tools. Without a chat template they have LlamaIndex's form "user: ...".

    A response's `additional_kwargs` say what it cost: prompt_tokens, completion_tokens, total_tokens,
    cached_tokens (in total and by tier), ttft_s, finish_reason, document_ids, speculation. So does
    `raw`, with the tokens in `raw["usage"]`, where TokenCountingHandler looks, and agents pass it on in
    `AgentStream.raw` and `AgentOutput.raw`. In a stream, the last response has them. A query may take
    several answers; `measure_cost` adds them up.

    Calls raise BadRequest for requests that cannot be served (EmptyPrompt, PromptTooLong,
    RefusedMessages, NoChatTemplate for tools, UnsupportedGuide, a parameter the engine does not have),
    and EngineError if the engine cannot finish. Closing a stream early or cancelling the task cancels
    the request.

    `to_dict` and `to_json` return the parameters and the model's name, without the engine, the callbacks,
    and the functions that write prompts. `from_dict(data, engine=engine)` makes an LLM from them again,
    on that engine's model.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: Engine = Field(exclude=True, repr=False)
    tenant: str | None = None
    exact: bool = False
    is_chat_model: bool = False
    is_function_calling_model: bool | None = None

    @field_validator("callback_manager", mode="before")
    @classmethod
    def _default_callback_manager(cls, manager: CallbackManager | None) -> CallbackManager:
        # None is allowed, as in Vllm.
        return manager or CallbackManager([])

    @model_validator(mode="after")
    def _use_chat_template(self) -> Self:
        # LlamaIndex sets its own function if the caller gave none.
        if self.messages_to_prompt is generic_messages_to_prompt:
            self.messages_to_prompt = partial(write_conversation, self.engine)
        return self

    @classmethod
    def class_name(cls) -> str:
        return "RAGCacheLLM"

    def __repr__(self) -> str:
        return describe_model(self, self.engine)

    def __str__(self) -> str:
        return repr(self)

    # Saved with the parameters, so that an ingestion cache, which knows an LLM by what it saves, does
    # not take one model's answer for another's.

    @computed_field
    def model(self) -> str:
        """The name of the engine's model."""
        return self.engine.config.model_name

    @computed_field(repr=False)
    def model_fingerprint(self) -> str:
        """A hash of what else changes answers: the engine's settings, and the functions for prompts."""
        return fingerprint(self.engine.config, self)

    @property
    def metadata(self) -> LLMMetadata:
        return self._describe(self._can_call_functions())

    def to_payload(self) -> dict[str, Any]:
        # LlamaIndex asks in each call, on the event loop: no moment to ask a template, or a server.
        chosen = self.is_function_calling_model
        payload = {"class_name": self.class_name(), **self._describe(bool(chosen)).model_dump()}
        if chosen is None:
            payload.pop("is_function_calling_model")
        return payload

    def _describe(self, can_call_functions: bool) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.engine.limits.context_tokens,
            num_output=self.max_new_tokens,
            is_chat_model=self.is_chat_model,
            is_function_calling_model=can_call_functions,
            model_name=self.engine.config.model_name,
        )

    def _can_call_functions(self) -> bool:
        if self.is_function_calling_model is not None:
            return self.is_function_calling_model
        try:
            _ = self.engine.chat.takes_tools  # if the template has no place for them, a message has
        except NoChatTemplate:
            return False
        return True

    def tokenize(self, text: str) -> list[int]:
        """Return the text's tokens, by the tokenizer of the engine's model.

        Use it as LlamaIndex's tokenizer: with `Settings.tokenizer = llm.tokenize`, prompts are packed to
        this model's context; `TokenCountingHandler(tokenizer=llm.tokenize)` counts this model's tokens.
        Raises EngineClosed if the engine is closed.
        """
        return list(self.engine.tokenize(text).token_ids)

    def prompt_helper(self) -> PromptHelper:
        """Return LlamaIndex's helper that packs prompts, counting by this model's tokenizer.

            synthesizer = get_response_synthesizer(llm=llm, prompt_helper=llm.prompt_helper())

        LlamaIndex counts by `Settings.tokenizer` otherwise, which is another model's until it is set, and
        then long prompts may not fit this model's context.
        """
        return PromptHelper.from_llm_metadata(self.metadata, tokenizer=self.tokenize)

    def render(self, template: BasePromptTemplate, **prompt_args: Any) -> str:
        """Return the exact prompt that `predict(template, **prompt_args)` sends to the engine."""
        if self.is_chat_model:
            return self._prompt(self._get_messages(template, **prompt_args))
        return self._get_prompt(template, **prompt_args)

    def stream(self, prompt: BasePromptTemplate, **prompt_args: Any) -> TokenGen:
        return release_when_closed(super().stream(prompt, **prompt_args))

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Make an LLM with the parameters that `to_dict` returned, on `engine=`.

        kwargs: the engine, and whatever is not in the data or should be different: callback_manager,
          messages_to_prompt, completion_to_prompt, output_parser.
        Raises EngineNeeded without an engine.
        """
        if "engine" not in {**data, **kwargs}:
            raise EngineNeeded(
                f"an engine cannot be saved with what runs on it: start one, and restore the LLM with "
                f"{cls.__name__}.from_dict(data, engine=engine), or from_json in the same way"
            )
        saved = {
            name: value for name, value in data.items() if name not in cls.model_computed_fields
        }
        return super().from_dict(saved, **kwargs)

    def __getstate__(self) -> dict[Any, Any]:
        raise EngineNeeded(
            f"an engine lives in one process, so {type(self).__name__} cannot be pickled: send "
            f"llm.to_dict(), and make another of it with from_dict(data, engine=...)"
        )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # The copy shares the engine.
        return super().__deepcopy__({**(memo or {}), id(self.engine): self.engine})

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        options = self._options(kwargs)
        prompt = self._format_prompt(prompt, formatted)
        return completion(self._answer(prompt, options))

    @report_stream(llm_completion_callback())
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        options = self._options(kwargs)
        return self._read(self._pieces(self._format_prompt(prompt, formatted), options))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        options = self._options(kwargs)
        prompt = self._format_prompt(prompt, formatted)
        return completion(await self._aanswer(prompt, options))

    @report_astream(llm_completion_callback())
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        options = self._options(kwargs)
        return self._aread(self._apieces(self._format_prompt(prompt, formatted), options))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        request = self._request(messages, kwargs)
        answer = self._answer(request.prompt, request.options)
        return chat_response(answer, request.read_answer(answer))

    @report_stream(llm_chat_callback())
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        request = self._request(messages, kwargs)
        return self._read_chat(request, self._pieces(request.prompt, request.options))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        request = await self._arequest(messages, kwargs)
        answer = await self._aanswer(request.prompt, request.options)
        return chat_response(answer, await request.aread_answer(answer))

    @report_astream(llm_chat_callback())
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        request = await self._arequest(messages, kwargs)
        return self._aread_chat(request, self._apieces(request.prompt, request.options))

    # The public methods above report to LlamaIndex's callbacks. The methods below do the work without
    # reporting.

    def _options(self, kwargs: dict[str, Any]) -> SamplingOptions:
        with query_errors():
            return self.sampling_options(kwargs)

    def _answer(self, prompt: str, options: SamplingOptions) -> Answer:
        record = cost_recorder()
        with query_errors():
            answer = self.engine.generate(
                prompt, options=options, tenant=self.tenant, exact=self.exact
            )
        record(answer.usage)
        return answer

    async def _aanswer(self, prompt: str, options: SamplingOptions) -> Answer:
        record = cost_recorder()
        with query_errors():
            answer = await self.engine.agenerate(
                prompt, options=options, tenant=self.tenant, exact=self.exact
            )
        record(answer.usage)
        return answer

    def _pieces(self, prompt: str, options: SamplingOptions) -> Generator[Piece, None, None]:
        # Started here, not in the generator, so that the call itself raises errors of bad input.
        record = cost_recorder()
        with query_errors():
            stream = self.engine.stream(
                prompt, options=options, tenant=self.tenant, exact=self.exact
            )

        def pieces() -> Generator[Piece, None, None]:
            with query_errors(), stream:
                cancel_when_chat_is_left(stream.close)
                for piece in stream:
                    record(piece.usage)
                    yield piece

        return pieces()

    def _apieces(self, prompt: str, options: SamplingOptions) -> AsyncGenerator[Piece, None]:
        # Taken here, because the generator runs in the context of whoever reads it.
        record = cost_recorder()

        async def pieces() -> AsyncGenerator[Piece, None]:
            with query_errors():
                async with aclosing(
                    self.engine.astream(
                        prompt, options=options, tenant=self.tenant, exact=self.exact
                    )
                ) as stream:
                    with ended_when_chat_is_left():
                        async for piece in stream:
                            record(piece.usage)
                            yield piece

        return pieces()

    def _read(
        self, pieces: Generator[Piece, None, None]
    ) -> Generator[CompletionResponse, None, None]:
        text = ""
        with closing(pieces):
            for piece in pieces:
                text += piece.text
                yield completion_so_far(text, piece)

    async def _aread(
        self, pieces: AsyncGenerator[Piece, None]
    ) -> AsyncGenerator[CompletionResponse, None]:
        text = ""
        async with aclosing(pieces):
            async for piece in pieces:
                text += piece.text
                yield completion_so_far(text, piece)

    def _read_chat(
        self, request: ChatRequest, pieces: Generator[Piece, None, None]
    ) -> Generator[ChatResponse, None, None]:
        message = MessageSoFar()
        with closing(pieces):
            for piece in pieces:
                if (part := request.read_piece(piece)) or piece.reasoning or piece.usage:
                    yield message.add(piece, part or ToolAnswerPart())

    async def _aread_chat(
        self, request: ChatRequest, pieces: AsyncGenerator[Piece, None]
    ) -> AsyncGenerator[ChatResponse, None]:
        message = MessageSoFar()
        async with aclosing(pieces):
            async for piece in pieces:
                if (part := await request.aread_piece(piece)) or piece.reasoning or piece.usage:
                    yield message.add(piece, part or ToolAnswerPart())

    async def _arequest(
        self, messages: Sequence[ChatMessage], changes: Mapping[str, Any]
    ) -> ChatRequest:
        # In a thread: a template may be long, a server far away, and a model may just start again.
        return await self.engine.threads.render(partial(self._request, messages, changes))

    def _request(self, messages: Sequence[ChatMessage], changes: Mapping[str, Any]) -> ChatRequest:
        changes = dict(changes)
        tools = [describe_tool(tool) for tool in changes.pop("tools", None) or ()]
        bound = BoundTools.from_choice(tools, changes.pop("tool_choice", None))
        options = bound.add_to_options(self.engine, self._options(changes))
        # Only a chat template can show the model tools; a messages_to_prompt cannot.
        prompt = (
            self.engine.chat.prompt(as_messages(messages), tools=bound.tools)
            if bound.tools
            else self._prompt(messages)
        )
        return ChatRequest(prompt, options, bound.make_reader(self.engine, options), self.engine)

    def _format_prompt(self, prompt: str, formatted: bool) -> str:
        if formatted or self.completion_to_prompt is None:
            return prompt
        return self.completion_to_prompt(prompt)

    def _prompt(self, messages: Sequence[ChatMessage]) -> str:
        assert self.messages_to_prompt is not None  # LLM fills it in
        return self.messages_to_prompt(messages)
