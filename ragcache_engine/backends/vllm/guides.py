"""Guided decoding: translates our guides into vLLM's structured outputs."""

from __future__ import annotations

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

from ragcache_engine.errors import UnsupportedGuide
from ragcache_engine.guide import Guide, GuideKind
from ragcache_engine.values import SamplingOptions
from ragcache_engine.visible import quoted


def to_structured_outputs(guide: Guide) -> StructuredOutputsParams:
    """Translate a guide for one request. vLLM writes into the result, so each request needs its own."""
    match guide.kind:
        case GuideKind.JSON:
            return StructuredOutputsParams(json=guide.form[0])
        case GuideKind.REGEX:
            return StructuredOutputsParams(regex=guide.form[0])
        case GuideKind.CHOICE:
            return StructuredOutputsParams(choice=list(guide.form))
        case GuideKind.GRAMMAR:
            return StructuredOutputsParams(grammar=guide.form[0])


def require_servable(options: SamplingOptions, llm: AsyncLLM) -> None:
    """Let vLLM check the guide, as it will when the request comes. Takes milliseconds.

    Raises UnsupportedGuide if vLLM cannot hold an answer to the guide.
    """
    assert options.guide is not None
    config = llm.vllm_config
    params = SamplingParams(structured_outputs=to_structured_outputs(options.guide))
    try:
        params.verify(
            config.model_config,
            config.speculative_config,
            config.structured_outputs_config,
            llm.get_tokenizer(),
        )
    except Exception as error:  # of its libraries for grammars, each raises its own
        raise UnsupportedGuide(
            f"vLLM cannot hold an answer to this {options.guide.kind.value} guide: {error}. "
            f"Simplify it: {quoted(options.guide.form[0])}"
        ) from error
