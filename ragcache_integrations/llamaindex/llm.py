"""RAGCacheLLM: the engine as a LlamaIndex LLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from typing import Any

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
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from pydantic import ConfigDict, Field, field_validator

from ragcache_engine import RAGCacheEngine, SamplingOptions
from ragcache_integrations.llamaindex.responses import (
    chat_response,
    completion,
    completion_so_far,
)
from ragcache_integrations.llamaindex.streams import (
    aeach,
    each,
    reported_astream,
    reported_stream,
)
from ragcache_integrations.sampling import SamplingFields


class RAGCacheLLM(SamplingFields, LLM):
    """The engine in place of LlamaIndex's `Vllm`: same parameters, same defaults.

        llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=64)
        query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

    Parameters of the model itself (dtype, tensor_parallel_size, ...) go into the engine's
    configuration and are refused here. A call may set any sampling parameter for itself:
    `llm.complete(prompt, temperature=0.7, max_tokens=32, stop=["."])`.
    A prompt goes through completion_to_prompt unless the call says formatted=True, as query engines
    do; a conversation goes through messages_to_prompt.

    What an answer cost stands in the response's `additional_kwargs`: prompt_tokens,
    completion_tokens, total_tokens, cached_tokens and its tiers, ttft_s, finish_reason,
    document_ids, speculation; and in `raw["usage"]`, where TokenCountingHandler looks. Of a stream the
    last response has it.

    Asking raises BadRequest for what cannot be served (EmptyPrompt, PromptTooLong, a parameter the
    engine does not have), EngineError if the engine cannot finish. Closing a stream early or
    cancelling the task cancels the request.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    engine: RAGCacheEngine = Field(exclude=True, repr=False)

    @field_validator("callback_manager", mode="before")
    @classmethod
    def _never_without_callback_manager(cls, manager: CallbackManager | None) -> CallbackManager:
        # Vllm takes None for "none of my own".
        return manager or CallbackManager([])

    @classmethod
    def class_name(cls) -> str:
        return "RAGCacheLLM"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.engine.limits.context_tokens,
            num_output=self.max_new_tokens,
            is_chat_model=False,
            model_name=self.engine.config.model,
        )

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self._complete(self._formatted(prompt, formatted), self.sampling_options(kwargs))

    @reported_stream(llm_completion_callback())
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        return self._stream(self._formatted(prompt, formatted), self.sampling_options(kwargs))

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        options = self.sampling_options(kwargs)
        return await self._acomplete(self._formatted(prompt, formatted), options)

    @reported_astream(llm_completion_callback())
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        return self._astream(self._formatted(prompt, formatted), self.sampling_options(kwargs))

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return chat_response(self._complete(self._prompt(messages), self.sampling_options(kwargs)))

    @reported_stream(llm_chat_callback())
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        completions = self._stream(self._prompt(messages), self.sampling_options(kwargs))
        return each(chat_response, completions)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        options = self.sampling_options(kwargs)
        return chat_response(await self._acomplete(self._prompt(messages), options))

    @reported_astream(llm_chat_callback())
    async def astream_chat(
        self, messages: Sequence[ChatMessage], **kwargs: Any
    ) -> ChatResponseAsyncGen:
        completions = self._astream(self._prompt(messages), self.sampling_options(kwargs))
        return aeach(chat_response, completions)

    # The public methods above report to LlamaIndex's callbacks; these do the work, so that a chat
    # is reported once and not as a completion too.

    def _complete(self, prompt: str, options: SamplingOptions) -> CompletionResponse:
        return completion(self.engine.generate(prompt, options=options))

    async def _acomplete(self, prompt: str, options: SamplingOptions) -> CompletionResponse:
        return completion(await self.engine.agenerate(prompt, options=options))

    def _stream(
        self, prompt: str, options: SamplingOptions
    ) -> Generator[CompletionResponse, None, None]:
        # Asked here and not in the generator: bad input is then raised by the call itself.
        stream = self.engine.stream(prompt, options=options)

        def responses() -> Generator[CompletionResponse, None, None]:
            text = ""
            with stream:
                for piece in stream:
                    text += piece.text
                    yield completion_so_far(text, piece)

        return responses()

    async def _astream(
        self, prompt: str, options: SamplingOptions
    ) -> AsyncGenerator[CompletionResponse, None]:
        text = ""
        async with aclosing(self.engine.astream(prompt, options=options)) as pieces:
            async for piece in pieces:
                text += piece.text
                yield completion_so_far(text, piece)

    def _formatted(self, prompt: str, formatted: bool) -> str:
        if formatted or self.completion_to_prompt is None:
            return prompt
        return self.completion_to_prompt(prompt)

    def _prompt(self, messages: Sequence[ChatMessage]) -> str:
        assert self.messages_to_prompt is not None  # LLM fills it in
        return self.messages_to_prompt(messages)
