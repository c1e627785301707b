"""Reads the bodies of OpenAI's requests as vLLM's server does, to know their prompts before it does, and
to refuse those that it fails at.

Some of vLLM's checks run before types are checked, so a text where they look for an object is an
AttributeError, and the answer a 500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.exceptions import VLLMError
from vllm.renderers.online_renderer import OnlineRenderer

from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.errors import InvalidArgument, RefusedMessages
from ragcache_engine.serving.openai_bodies import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE
from ragcache_engine.serving.routes import WrittenPrompt

_BODIES: dict[str, TypeAdapter[Any]] = {
    COMPLETIONS: TypeAdapter(CompletionRequest),
    CHAT: TypeAdapter(ChatCompletionRequest),
    TOKENIZE: TypeAdapter(TokenizeRequest),
    DETOKENIZE: TypeAdapter(DetokenizeRequest),
}

_REFUSED = (VLLMError, ValueError, TypeError, OverflowError)
"""What vLLM's server itself answers with a reason and a status below 500."""


def require_readable(path: str, body: bytes) -> None:
    """Raise InvalidArgument for a body that vLLM's server would answer with 500.

    It says nothing against one that vLLM's server refuses: that tells its reason better.
    """
    try:
        _BODIES[path].validate_python(from_json(body))
    except _REFUSED:
        return
    except Exception as error:
        raise InvalidArgument(
            f"a field of the body has a value of another type than {path} takes: {error}"
        ) from error


async def write_chat(
    renderer: OnlineRenderer, threads: DaemonThreads, said: Mapping[str, Any]
) -> WrittenPrompt:
    """Return the prompt that vLLM's server makes of the body of a chat request.

    renderer: of that server. threads: where bodies are read. Raises what vLLM does for a body that it
    refuses, and RefusedMessages for one of which it makes no prompt of text.
    """
    # It changes what it is given.
    request = await threads.run(lambda: ChatCompletionRequest.model_validate(deepcopy(dict(said))))
    rendered = await renderer.render_chat(request, skip_mm_cache=True)
    inputs: Sequence[Mapping[str, Any]] = rendered[1] if isinstance(rendered, tuple) else []
    text = inputs[0].get("prompt") if len(inputs) == 1 else None
    if not isinstance(text, str) or "prompt_token_ids" not in inputs[0]:
        raise RefusedMessages("vLLM writes no prompt of text of these messages")
    return WrittenPrompt(text, inputs[0]["prompt_token_ids"])
