"""RAGCacheLLM: the engine as a LangChain LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from copy import copy
from typing import Any, Self, TypeVar

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import GenerationChunk, LLMResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import ConfigDict, PrivateAttr

from ragcache_engine import SamplingOptions
from ragcache_integrations.langchain.model_base import EngineModel, one_thread_each
from ragcache_integrations.langchain.stream_cancellation import CancellableStream
from ragcache_integrations.langchain.usage import generation_chunk, llm_result

T = TypeVar("T")

_OF_LANGCHAIN = ("tags", "metadata", "run_name", "run_id")
"""Arguments of `generate` that change no answer."""


class RAGCacheLLM(EngineModel, BaseLLM):
    """The engine in place of `langchain_community.llms.VLLM`, with the same parameters and defaults.

        chain = prompt | RAGCacheLLM(engine=engine, temperature=0) | StrOutputParser()

    Parameters of the model itself (dtype, tensor_parallel_size, ...) belong in the engine's
    configuration and are refused here. A call may set any sampling parameter for itself:
    `llm.invoke(prompt, temperature=0.7, max_tokens=32, stop=["."])`. A call's `stop` replaces the
    LLM's. If a call gives none, the LLM's `stop` holds (VLLM would ignore it).

        >>> from ragcache_engine import EngineConfig, RAGCacheEngine
        >>> engine = RAGCacheEngine(EngineConfig(model="any", backend="memory"))
        >>> llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=64)
        >>> llm.invoke("Why is the sky blue?")
        'You asked: Why is the sky blue?'

    With `guide`, answers keep to a form: a JSON schema, a Pydantic class, or Guide.choice(...):

        >>> from ragcache_engine import Guide
        >>> llm.bind(guide=Guide.choice(["red", "blue"])).invoke("Which colour has the blue sky?")
        'blue'
        >>> engine.close()

    engine: a running engine, which several LLMs may share; or an EngineConfig, to start one.
    tenant: whose cached tensors the requests may use; prompts of different tenants share nothing.
    exact: borrow nothing from other contexts, even if the engine has reuse="anywhere".
    timeout: end a request with RequestTimedOut that has no whole answer after so many seconds.
    logprobs, top_logprobs: tell in generation_info["logprobs"] how likely the tokens were, in the form of
      OpenAI's chat API. A call may set all of these for itself.

    `LLMResult.llm_output["token_usage"]` says what the answers to all prompts cost together.
    `generation_info` says it for each answer: finish_reason, usage_metadata (input_token_details has
    cache_read), cached_tokens (in total and by tier), ttft_s, document_ids, speculation. In a stream,
    the last chunk has it.

    Calls raise BadRequest for requests that cannot be served (EmptyPrompt, PromptTooLong, a parameter
    the engine does not have), and EngineError if the engine cannot finish. If one prompt of a batch
    fails, the others are cancelled; with return_exceptions=True each prompt has its own answer or error.
    Leaving a stream early or cancelling the task cancels the request.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _call_parameters: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def _llm_type(self) -> str:
        return "ragcache"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {**super()._identifying_params, **self._call_parameters}

    def generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        stop = self.stop if stop is None else stop
        return super(RAGCacheLLM, self._for_call(kwargs)).generate(
            prompts, stop, callbacks, **kwargs
        )

    async def agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        stop = self.stop if stop is None else stop
        return await super(RAGCacheLLM, self._for_call(kwargs)).agenerate(
            prompts, stop, callbacks, **kwargs
        )

    # Traces show the `stop` that these two are given.

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        stop = self.stop if stop is None else stop
        return super().stream(input, config, stop=stop, **kwargs)

    def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[str]:
        stop = self.stop if stop is None else stop
        return super().astream(input, config, stop=stop, **kwargs)

    def _for_call(self, kwargs: Mapping[str, Any]) -> Self:
        """Return the LLM that answers a call, with the call's parameters among those that identify it.

        LangChain's cache of answers identifies an LLM without them, and would give a call the answer of
        another.
        """
        parameters = {name: value for name, value in kwargs.items() if name not in _OF_LANGCHAIN}
        if not parameters:
            return self
        llm = copy(self)
        llm._call_parameters = parameters
        return llm

    def get_token_ids(self, text: str) -> list[int]:
        """Return the text's tokens, by the tokenizer of the engine's model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return list(self.engine.tokenize(text).token_ids)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        if not return_exceptions:
            return super().batch(inputs, config, **kwargs)
        # An LLM of LangChain sends a batch as one call, whose error would become that of every input.
        # A runnable of LangChain sends one call for each input.
        configs = one_thread_each(config, len(inputs))
        return Runnable.batch(self, inputs, configs, return_exceptions=True, **kwargs)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        if not return_exceptions:
            return await super().abatch(inputs, config, **kwargs)
        return await Runnable.abatch(self, inputs, config, return_exceptions=True, **kwargs)

    def transform(
        self,
        input: Iterator[LanguageModelInput],
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Iterator[str]:
        return CancellableStream(super().transform(input, config, **kwargs))

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options = self._options(stop, kwargs)
        settings = self.request_settings(kwargs)
        # All requests start before the first answer is read, so that the engine can batch them. If
        # anything goes wrong, leaving the stack cancels the requests that still run.
        with ExitStack() as running:
            streams = [
                running.enter_context(self.engine.stream(prompt, options=options, **settings))
                for prompt in prompts
            ]
            answers = [stream.answer() for stream in streams]
        return llm_result(answers, self.model_name)

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        options, settings = self._options(stop, kwargs), self.request_settings(kwargs)
        answers = await _run_all_or_none(
            self.engine.agenerate(prompt, options=options, **settings) for prompt in prompts
        )
        return llm_result(answers, self.model_name)

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        options = self._options(stop, kwargs)
        with self.engine.stream(prompt, options=options, **self.request_settings(kwargs)) as pieces:
            for piece in pieces:
                chunk = generation_chunk(piece)
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk, verbose=self.verbose)
                yield chunk

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        options = self._options(stop, kwargs)
        async with aclosing(
            self.engine.astream(prompt, options=options, **self.request_settings(kwargs))
        ) as pieces:
            async for piece in pieces:
                chunk = generation_chunk(piece)
                if run_manager:
                    await run_manager.on_llm_new_token(
                        chunk.text, chunk=chunk, verbose=self.verbose
                    )
                yield chunk

    def check_call(self, options: Mapping[str, Any]) -> None:
        """Raise BadRequest or ValueError if a call with these options would; nothing is computed."""
        self.sampling_options(
            {name: value for name, value in options.items() if name not in _OF_LANGCHAIN}
        )

    def _options(self, stop: Sequence[str] | None, changes: dict[str, Any]) -> SamplingOptions:
        return self.sampling_options(changes if stop is None else {**changes, "stop": stop})


async def _run_all_or_none(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutines together. If one fails, cancel the others and raise its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
