"""Reads the bodies of OpenAI's requests as vLLM's server does, to refuse those that it fails at.

Some of vLLM's checks run before types are checked, so a text where they look for an object is an
AttributeError, and the answer a 500.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest
from vllm.exceptions import VLLMError

from ragcache_engine.errors import InvalidArgument
from ragcache_engine.serving.openai_bodies import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE

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
