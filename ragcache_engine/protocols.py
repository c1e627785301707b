"""What the engine asks of a backend: the methods, and the values that go in and come out."""

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

    segments: runs of tokens in prompt order, covering the whole prompt; empty if the engine recognised
      no document in the prompt.
    tenant: requests share cached tensors only within one tenant; None counts as one more tenant.
    is_guess: whether this is a speculation whose answer nobody has asked for yet. It counts as a use of
      its documents only once it is adopted.
    is_provisional: whether this is a guess that the running search may still revoke. The backend
      computes it in steps that are short enough to cancel.
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
    """A conversation for a chat template to write. The engine has checked that all contents are texts.

    messages, tools: as in OpenAI's chat API.
    template: the Jinja text of the template; None: the model's own.
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
    """What one step of the model adds to an answer: new tokens and new text.

    cached: the prompt's cache hits; exact for each tier in the answer's last delta.
    """

    text: str
    token_ids: tuple[int, ...]
    cached: CachedTokens | None = None
    finish_reason: FinishReason | None = None


class Backend(Protocol):
    """Runs a model. The engine calls every coroutine on its own event loop.

    Any thread may call the other methods, unless they say otherwise.
    """

    async def start(self) -> ModelLimits:
        """Load the model. If it raises ConfigError or EngineStartFailed, it leaves nothing behind."""

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        """Turn a prompt into tokens exactly as the model would."""

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of an answer's tokens."""

    def check(self, options: SamplingOptions) -> None:
        """Raise UnsupportedGuide for options with which a generation would fail."""

    def render(self, conversation: Conversation) -> str:
        """Write the conversation by the model's chat template.

        Raises NoChatTemplate, or RefusedMessages for messages that the template cannot write.
        """

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        """Return a reader of the calls of these tools in one answer."""

    def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        """Yield the answer while it is generated. Closing the generator aborts and frees its memory.

        Raises GenerationFailed if this request failed and others go on; EngineDied if the model's
        process is gone. After EngineDied, close() and start() may be called again.
        """

    def now(self) -> float:
        """Return the seconds of a clock that never runs back. Only differences mean anything."""

    async def clear_cache(self) -> bool:
        """Drop every cached block. Return False, and drop none, while running requests hold blocks.

        Raises EngineDied if the model's process is gone.
        """

    async def forget(self, document_ids: Sequence[str]) -> None:
        """Drop documents from every tier, with all blocks that were computed after them.

        Blocks that running requests need are dropped when these end. Raises EngineDied if the model's
        process is gone.
        """

    def adopted(self, request_id: str) -> None:
        """Note that somebody asked for what this guess generates. The engine calls this on its loop.

        The guess may have ended already.
        """

    def counters(self) -> Counters:
        """Return the counts of what the tiers have done, as of the request that ended last."""

    async def close(self) -> None:
        """Free everything: processes, memory, files. A second call does nothing."""
