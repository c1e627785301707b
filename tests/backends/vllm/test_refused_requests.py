"""What vLLM refuses at one request is the client's mistake, and is not tried again as a failure is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ragcache_engine import InvalidArgument, SamplingOptions
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.values import TokenizedPrompt

pytest.importorskip("vllm")

from vllm.exceptions import VLLMValidationError

from ragcache_engine.backends.vllm.backend import VLLMBackend
from ragcache_engine.backends.vllm.budget import TierBudget


class Refusing:
    """The part of AsyncLLM that generates, of a server that allows fewer logprobs."""

    async def generate(self, *_: Any) -> AsyncIterator[Any]:
        raise VLLMValidationError("Requested sample logprobs of 20, which is greater than 5")
        yield


def test_options_beyond_the_limits_of_a_started_vllm_are_an_invalid_argument():
    backend = VLLMBackend("model", None, TierBudget("lru"), {})
    backend._llm = Refusing()  # type: ignore[assignment]
    request = BackendRequest("r", TokenizedPrompt("a", (1,), ()), (), SamplingOptions(logprobs=20))

    async def ask() -> None:
        async for _ in backend.generate(request):
            pass

    with pytest.raises(InvalidArgument, match=r"does not take this request: .*greater than 5"):
        asyncio.run(ask())
