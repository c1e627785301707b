"""Today's vLLM as a LangChain LLM that streams: the client of the baselines, without RAGCache.

LangChain's own VLLM class answers one batch after another and takes no question while another one is
under way. This class drives vLLM's asynchronous engine as vLLM's server does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from itertools import count
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import GenerationChunk, LLMResult
from pydantic import Field, PrivateAttr
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from comparing.stock_offload import stock_offload
from comparing.systems import Sizes
from ragcache_engine.backends.vllm import cpu_defaults


def stock_arguments(settings: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return vLLM's arguments for a baseline: its settings, and for the rest RAGCache's choices."""
    arguments: dict[str, Any] = {
        "model": sizes.model,
        "dtype": sizes.dtype,
        "enable_prefix_caching": settings["prefix_caching"],
        "kv_cache_memory_bytes": sizes.device_bytes,
        "max_model_len": sizes.context_tokens,
        "max_num_seqs": sizes.at_once,
    }
    if current_platform.is_cpu():
        arguments |= {"enforce_eager": True, "block_size": cpu_defaults.BLOCK_TOKENS}
    if policy := settings.get("offload"):
        arguments |= stock_offload(policy, sizes.host_bytes, on_cpu=current_platform.is_cpu())
    return arguments


def start_stock(settings: Mapping[str, Any], sizes: Sizes) -> AsyncLLM:
    """Start vLLM's asynchronous engine. Call this on the event loop that will use the engine."""
    config = AsyncEngineArgs(**stock_arguments(settings, sizes)).create_engine_config(
        UsageContext.LLM_CLASS  # steps as long as RAGCache's
    )
    return AsyncLLM.from_vllm_config(
        config, usage_context=UsageContext.ENGINE_CONTEXT, disable_log_stats=True
    )


class StockLLM(BaseLLM):
    """A greedy LLM. `max_tokens` and `ignore_eos` may be bound to a call."""

    vllm: Any = Field(exclude=True, repr=False)
    max_tokens: int = 64
    _numbers: Any = PrivateAttr(default_factory=count)

    @property
    def _llm_type(self) -> str:
        return "stock-vllm"

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        params = SamplingParams(
            temperature=0,
            max_tokens=kwargs.get("max_tokens", self.max_tokens),
            ignore_eos=kwargs.get("ignore_eos", False),
            stop=stop,
            output_kind=RequestOutputKind.DELTA,
        )
        outputs = self.vllm.generate(prompt, params, f"stock-{next(self._numbers)}")
        tokens = 0
        async with aclosing(outputs):
            async for output in outputs:
                completion = output.outputs[0]
                tokens += len(completion.token_ids)
                info = _cost(output, tokens) if output.finished else None
                chunk = GenerationChunk(text=completion.text, generation_info=info)
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        raise NotImplementedError("this client only streams, on an event loop")


def _cost(output: Any, tokens: int) -> dict[str, Any]:
    """Return the tokens of an answer, named as RAGCacheLLM names them.

    vLLM does not distinguish device and host, so all cached tokens count as the device's.
    """
    return {
        "usage_metadata": {
            "input_tokens": len(output.prompt_token_ids),
            "output_tokens": tokens,
        },
        "cached_tokens_device": output.num_cached_tokens or 0,
        "cached_tokens_host": 0,
        "cached_tokens_disk": 0,
    }
