"""Tells a model's reasoning apart from its answers, with vLLM's own parsers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from vllm.config import VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import Parser, ParserManager
from vllm.tokenizers import TokenizerLike

from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.values import SamplingOptions


class ReasoningParsers:
    """Makes a reader for each answer, with the parser that vLLM's configuration names."""

    def __init__(self, config: VllmConfig, tokenizer: TokenizerLike) -> None:
        model = config.model_config
        parser = ParserManager.get_parser(
            reasoning_parser_name=config.structured_outputs_config.reasoning_parser,
            model_name=model.model,
            is_harmony=model.hf_config.model_type == "gpt_oss",  # as vLLM's server asks
        )
        assert parser is not None, "the configuration names a reasoning parser"
        self._make_parser = partial(parser, tokenizer, model_config=model)

    def make_reader(self, request: BackendRequest) -> ParsedReasoning:
        return ParsedReasoning(self._make_parser(**_parser_arguments(request.options)), request)

    def arguments(self, options: SamplingOptions) -> dict[str, Any]:
        """Return the arguments of vLLM's `generate` that say where a guide begins."""
        if options.template_args is None:
            return {"reasoning_ended": True}
        return {"reasoning_parser_kwargs": _parser_arguments(options)}


class ParsedReasoning:
    """Reads one answer, as a ReasoningReader."""

    def __init__(self, parser: Parser, request: BackendRequest) -> None:
        self._parser = parser
        self._prompt_ids = list(request.tokens.token_ids)
        self._token_ids: list[int] = []
        self._request = ChatCompletionRequest.model_validate(
            {"messages": [{"role": "user", "content": ""}]}
        )

    def read(self, delta: Delta) -> Delta:
        self._token_ids += delta.token_ids
        is_last = delta.finish_reason is not None
        found = self._parser.parse_delta(
            delta.text, list(delta.token_ids), self._request, self._prompt_ids, finished=is_last
        )
        return replace(
            delta,
            text=(found and found.content) or "",
            reasoning=(found and found.reasoning) or "",
            reasoning_tokens=(
                self._parser.count_reasoning_tokens(self._token_ids) if is_last else 0
            ),
        )


def _parser_arguments(options: SamplingOptions) -> dict[str, Any]:
    return {"chat_template_kwargs": dict(options.template_args or {})}
