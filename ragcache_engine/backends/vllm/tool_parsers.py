"""Reads tool calls with vLLM's own parsers. There is one for each format that models write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMError
from vllm.tokenizers import TokenizerLike
from vllm.tool_parsers import ToolParserManager

from ragcache_engine.chat import ToolAnswer, ToolAnswerPart, ToolCall, ToolCallPart
from ragcache_engine.errors import ConfigError, InvalidArgument


def require_parser(name: str) -> None:
    """Raise ConfigError if vLLM has no tool parser of this name."""
    known = ToolParserManager.list_registered()
    if name not in known:
        raise ConfigError(f"vLLM has no tool parser {name!r}; it has {', '.join(known)}")


class ParserReader:
    """Reads one answer, as a ToolReader, with vLLM's parser of this name.

    tools: as in OpenAI's API. Raises InvalidArgument for what vLLM takes for no tools.
    """

    def __init__(
        self, name: str, tokenizer: TokenizerLike, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._request = _ask_with(tools)
        parser = ToolParserManager.get_tool_parser(name)
        self._parser = parser(tokenizer, list(self._request.tools or ()))
        self._text = ""
        self._token_ids: tuple[int, ...] = ()

    def whole(self, text: str) -> ToolAnswer:
        found = self._parser.extract_tool_calls(text, self._request)
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in found.tool_calls
        )
        return ToolAnswer(found.content or "", calls)

    def read(self, text: str, token_ids: Sequence[int]) -> ToolAnswerPart:
        before, before_ids = self._text, self._token_ids
        self._text, self._token_ids = before + text, (*before_ids, *token_ids)
        delta = self._parser.extract_tool_calls_streaming(
            before, self._text, text, before_ids, self._token_ids, token_ids, self._request
        )
        if delta is None:
            return ToolAnswerPart()
        calls = tuple(
            ToolCallPart(
                call.index,
                call.id,
                call.function.name if call.function else None,
                (call.function.arguments if call.function else None) or "",
            )
            for call in delta.tool_calls or ()
        )
        return ToolAnswerPart(delta.content or "", calls)

    def end(self) -> ToolAnswerPart:
        rest = self._parser.get_remaining_unstreamed_args()
        if not rest:
            return ToolAnswerPart()
        last = len(self._parser.prev_tool_call_arr) - 1
        return ToolAnswerPart("", (ToolCallPart(last, arguments=rest),))


def _ask_with(tools: Sequence[Mapping[str, Any]]) -> ChatCompletionRequest:
    """Return a request of the kind that vLLM's parsers look at. Raises InvalidArgument."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": ""}]}
    if tools:
        said |= {"tools": [dict(tool) for tool in tools], "tool_choice": "auto"}
    try:
        return ChatCompletionRequest.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidArgument(f"{where}: {first['msg']}") from error
    except VLLMError as error:
        raise InvalidArgument(f"tools: {error}") from error
