"""Reads the bodies of OpenAI's requests as vLLM's server does, to know their prompts before it does, and
to refuse those that it fails at.

Some of vLLM's checks run before types are checked, so a text where they look for an object is an
AttributeError, and the answer a 500. It takes the first content of an assistant's earlier message unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.exceptions import VLLMError
from vllm.renderers.online_renderer import OnlineRenderer

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import InvalidArgument, RefusedMessages
from ragcache_engine.serving.openai_bodies import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
)
from ragcache_engine.serving.routes import WrittenPrompt

_BODIES: dict[str, TypeAdapter[Any]] = {
    COMPLETIONS: TypeAdapter(CompletionRequest),
    CHAT: TypeAdapter(ChatCompletionRequest),
    RESPONSES: TypeAdapter(ResponsesRequest),
    MESSAGES: TypeAdapter(AnthropicMessagesRequest),
    TOKENIZE: TypeAdapter(TokenizeRequest),
    DETOKENIZE: TypeAdapter(DetokenizeRequest),
}

_REFUSED = (VLLMError, ValueError, TypeError, OverflowError)
"""What vLLM's server itself answers with a reason and a status below 500."""


def require_readable(path: str, body: bytes) -> None:
    """Raise InvalidArgument for a body that vLLM's server would answer with 500.

    It says nothing against one that vLLM's server refuses: that tells its reason better.
    """
    messages: Sequence[Mapping[str, Any]] = ()
    try:
        request = _BODIES[path].validate_python(from_json(body))
        if path == RESPONSES:
            messages = construct_input_messages(request_input=request.input)
    except _REFUSED:
        return
    except LookupError as error:
        raise InvalidArgument(
            f"an item of the input has no content where {path} looks for it: {error}"
        ) from error
    except Exception as error:
        raise InvalidArgument(
            f"a field of the body has a value of another type than {path} takes: {error}"
        ) from error
    _require_plain_contents(messages)


def _require_plain_contents(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise InvalidArgument for a tool's output in parts that vLLM has read as objects of its own."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    if not all(isinstance(part, (str, Mapping)) for part in parts):
        raise InvalidArgument(
            "vLLM takes the output of a function call as one text, not as a list of parts"
        )


class PromptWriter:
    """Writes the prompts that vLLM's server makes of conversations.

    state: what the server's app keeps. threads: where bodies are read.
    """

    def __init__(self, state: Any, threads: DaemonThreads) -> None:
        self._renderer: OnlineRenderer = state.online_renderer
        # vLLM tries out once whether the chat template takes system messages in the middle, and tells
        # nobody. tests/backends/vllm/test_request_bodies.py notices when this moves.
        anthropic = getattr(state, "anthropic_serving_messages", None)
        self._merges_system: bool = getattr(anthropic, "_merge_inline_system", False)
        self._threads = threads

    async def write(self, path: str, said: Mapping[str, Any]) -> WrittenPrompt:
        """Return the prompt of a body.

        Raises what vLLM does for a body that it refuses, and RefusedMessages for one of which it makes no
        prompt of text.
        """
        # It changes what it is given.
        request = await self._threads.run(
            lambda: _BODIES[path].validate_python(deepcopy(dict(said)))
        )
        inputs: Any = None
        if path == RESPONSES:
            rendered = await self._renderer.render_responses(request, skip_mm_cache=True)
            inputs = getattr(rendered, "engine_input", None)
        else:
            if path == MESSAGES:
                request = self._as_chat(request)
            answer = await self._renderer.render_chat(request, skip_mm_cache=True)
            if isinstance(answer, tuple) and len(answer[1]) == 1:
                inputs = answer[1][0]
        text = inputs.get("prompt") if isinstance(inputs, Mapping) else None
        if not isinstance(text, str) or "prompt_token_ids" not in inputs:
            raise RefusedMessages("vLLM writes no prompt of text of these messages")
        return WrittenPrompt(text, inputs["prompt_token_ids"])

    def _as_chat(self, request: AnthropicMessagesRequest) -> ChatCompletionRequest:
        if request.thinking is not None and request.thinking.type == "disabled":
            raise RefusedMessages("vLLM tries out how much thinking means none")
        return AnthropicServingMessages.to_chat_completion_request(
            request, merge_inline_system=self._merges_system
        )
