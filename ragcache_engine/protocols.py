"""The doors between the parts: what each caller needs, and no more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ragcache_engine.chat import ToolReader
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.values import (
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
    TokenSegment,
)


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """One generation, checked and tokenised, as a backend receives it.

    segments: runs of tokens in prompt order, covering all of them; empty if nothing is known.
    tenant: whose tensors it may share; None shares with all others of None.
    is_guess: nobody has asked for it yet. It is a use of its documents only once it is adopted.
    is_provisional: a guess that the running search may still take back, so that it is computed in steps
      short enough to cancel.
    """

    request_id: str
    prompt: TokenizedPrompt
    segments: Sequence[TokenSegment]
    options: SamplingOptions
    tenant: str | None = None
    is_guess: bool = False
    is_provisional: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is given, checked: the contents of messages are texts.

    messages, tools: as in OpenAI's chat API.
    template: the Jinja text to write it with; None: the model's own.
    template_args: further variables of the template, such as {"enable_thinking": False}.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step brought: new tokens, and the prompt's cache hits, exact by tier in the last one."""

    text: str
    token_ids: tuple[int, ...]
    cached: CachedTokens | None = None
    finish_reason: FinishReason | None = None


class Backend(Protocol):
    """Runs the model. Every coroutine is called on the engine's own event loop."""

    async def start(self) -> ModelLimits:
        """Load the model. Raises ConfigError or EngineStartFailed and leaves nothing behind."""

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        """Turn a prompt into tokens exactly as the model would. Callable from any thread."""

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of an answer's tokens. Callable from any thread."""

    def check(self, options: SamplingOptions) -> None:
        """Refuse options that a generation would fail on. Any thread. Raises UnsupportedGuide."""

    def render(self, conversation: Conversation) -> str:
        """The conversation in the words of the model's chat template. Callable from any thread.

        Raises NoChatTemplate, or RefusedMessages for what the template does not take.
        """

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        """What reads the calls of these tools out of one answer. Callable from any thread."""

    def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        """Yield the answer as it is made. Closing the generator aborts it and frees its memory.

        Raises GenerationFailed if this request failed and others go on, EngineDied if the model's
        process is gone; start() may then be called again.
        """

    def now(self) -> float:
        """Seconds on a clock that never runs back; only differences mean anything. Any thread."""

    async def clear_cache(self) -> bool:
        """Drop every cached block; False, and nothing dropped, while running requests hold some."""

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Drop documents from every tier, with all computed after them.

        What running requests need is dropped when they end.
        """

    def adopted(self, request_id: str) -> None:
        """A guess was what somebody asked. On the engine's loop; it may have ended already."""

    def counters(self) -> Counters:
        """What the tiers have done, as of the request that ended last. Any thread."""

    async def close(self) -> None:
        """Free everything: processes, memory, files. A second call does nothing."""
