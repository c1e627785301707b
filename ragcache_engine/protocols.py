"""What the engine asks of a backend: the methods, and the values that go in and come out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from sys import getsizeof
from typing import Any, Protocol

from ragcache_engine.chat import ToolReader
from ragcache_engine.prompt.segments import Span
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.provenance import PromptSources, ReuseReport
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import (
    ONE_TOKEN,
    CachedTokens,
    FinishReason,
    ModelLimits,
    SamplingOptions,
    TokenizedPrompt,
    TokenLogprob,
    TokenSegment,
)

CHARACTERS_PER_TOKEN = 4
"""About how many characters of English one token stands for."""

NUMBER_BYTES, OFFSET_BYTES, SEGMENT_BYTES = 36, 128, 500
"""About what CPython takes for a number in a tuple, for a pair of numbers, for a segment or a context."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt that the backend tokenises itself."""

    text: str


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """One generation, checked, as a backend receives it.

    prompt: tokenised, unless the backend `reads_text`.
    segments: runs of tokens in prompt order, covering the whole prompt; empty if the engine recognised
      no document in the prompt, or if the backend `reads_text`.
    tenant: requests share cached tensors only within one tenant; None counts as one more tenant.
    is_guess: whether this is a speculation whose answer nobody has asked for yet. It counts as a use of
      its documents only once it is adopted.
    is_provisional: whether this is a guess that the running search may still revoke. The backend
      computes it in steps that are short enough to cancel.
    is_exact: whether it must not borrow from other contexts, even if the engine does.
    recompute_ratio: the share of borrowed documents to compute anew; None: the engine's own.
    contexts: by document, how its tensors are stored, to be borrowed; a document that is left out is
      stored behind the system text alone.
    makes_donors: whether the donors that it lacks are computed whatever they cost, to prepare its
      documents for later prompts.
    spans: where the documents stand in the prompt's text, in its order; none where the engine recognised
      no document, or where nobody needs to know.
    planned: the ForgetLog's moment when its documents were found; None: now.
    withdrawn: those of its documents, and of those behind which they are stored, that were forgotten
      since. Nothing is kept that it computes with them.
    """

    request_id: str
    prompt: TokenizedPrompt | PromptText
    segments: Sequence[TokenSegment]
    options: SamplingOptions
    tenant: str | None = None
    is_guess: bool = False
    is_provisional: bool = False
    is_exact: bool = False
    recompute_ratio: float | None = None
    contexts: Mapping[str, Context] = field(default_factory=dict)
    makes_donors: bool = False
    spans: Sequence[Span] = ()
    planned: int | None = None
    withdrawn: Sequence[str] = ()

    @property
    def tokens(self) -> TokenizedPrompt:
        """The prompt's tokens. Only for backends that do not read text."""
        assert isinstance(self.prompt, TokenizedPrompt), "this backend reads text"
        return self.prompt

    @property
    def named_documents(self) -> list[str]:
        """The documents in the prompt, and those behind which they are stored."""
        return [*self.document_ids, *(one.document for one in self.contexts.values())]

    @property
    def forget_ids(self) -> list[str]:
        """The ids with which the prompt is forgotten: its documents', and its tenant's."""
        return [*self.named_documents, *forget_ids_of(self.tenant)]

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory this takes."""
        size_bytes = getsizeof(self.prompt.text)
        if isinstance(self.prompt, TokenizedPrompt):
            size_bytes += NUMBER_BYTES * len(self.prompt) + OFFSET_BYTES * len(self.prompt.offsets)
        for one in self.contexts.values():
            size_bytes += NUMBER_BYTES * len(one.token_ids) + getsizeof(one.text)
        return size_bytes + SEGMENT_BYTES * (1 + len(self.segments) + len(self.contexts))

    def compact(self) -> BackendRequest:
        """Return the request for one who keeps it long: without the characters of each token."""
        if isinstance(self.prompt, PromptText):
            return self
        return replace(self, prompt=replace(self.prompt, offsets=()))

    def for_donors(self) -> BackendRequest:
        """Return the request that computes the donors of this prompt, and nothing of its answer.

        To the tiers it is a guess that nobody adopts; it is computed in short steps.
        """
        one_token = replace(ONE_TOKEN, add_special_tokens=self.options.add_special_tokens)
        return replace(
            self,
            options=one_token,
            is_guess=True,
            is_provisional=True,
            recompute_ratio=0.0,
            makes_donors=True,
        )

    def continued_after(self, token_ids: Sequence[int]) -> BackendRequest:
        """Return the request for the rest of an answer that has these tokens already.

        Only for backends that do not read text.
        """
        prompt, max_tokens = self.tokens, self.options.max_tokens
        rest = None if max_tokens is None else max_tokens - len(token_ids)
        return replace(
            self,
            request_id=f"{self.request_id}-resumed",
            prompt=TokenizedPrompt(prompt.text, (*prompt.token_ids, *token_ids), prompt.offsets),
            options=replace(self.options, max_tokens=rest),
        )

    @property
    def expected_tokens(self) -> int:
        """How many tokens the prompt has; of a text, roughly."""
        if isinstance(self.prompt, TokenizedPrompt):
            return len(self.prompt)
        return -(-len(self.prompt.text) // CHARACTERS_PER_TOKEN)

    @property
    def text_starts(self) -> list[int]:
        """For each document in the segments, the token at which its own text begins."""
        documents = [segment for segment in self.segments if segment.document_id is not None]
        return [one.start if one.text_start is None else one.text_start for one in documents]

    @property
    def document_ids(self) -> list[str]:
        """The documents in the prompt, in its order; one that stands there twice comes once."""
        parts = self.spans if isinstance(self.prompt, PromptText) else self.segments
        return list(
            dict.fromkeys(part.document_id for part in parts if part.document_id is not None)
        )


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

    cached: the prompt's cache hits; exact for each tier in the answer's last delta. None there if the
      backend does not know them: then it does not know either what was borrowed.
    reuse: what the prompt borrowed, in the answer's last delta; None if it borrowed nothing.
    why_exact: why it borrowed nothing, if the backend borrows at all.
    sources: which tokens these are, and why the others were computed; only in the last delta, if at all.
    prompt_tokens: how many tokens the prompt has. Only a backend that reads text tells it, once, as early
      as it can.
    logprobs: of its tokens, if the options ask for them.
    reasoning: new text that belongs to the model's reasoning, once a ReasoningReader or a server has told
      it apart. reasoning_tokens: how many tokens of the whole answer did; only in the last delta.
    A delta that adds nothing says that the prompt was found good and now waits for its turn. Only a
    backend that reads text begins an answer so.
    """

    text: str
    token_ids: tuple[int, ...]
    cached: CachedTokens | None = None
    finish_reason: FinishReason | None = None
    _: KW_ONLY
    reuse: ReuseReport | None = None
    why_exact: str | None = None
    sources: PromptSources | None = None
    prompt_tokens: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0

    @property
    def is_start(self) -> bool:
        """Whether the request has only been taken, and there is no token yet."""
        return not (self.text or self.token_ids or self.finish_reason)


class ReasoningReader(Protocol):
    """Tells the reasoning in one answer apart from the text."""

    def read(self, delta: Delta) -> Delta:
        """Take the answer's next delta, and return it with its text divided."""


class Backend(Protocol):
    """Runs a model. The engine calls every coroutine on its own event loop.

    Any thread may call the other methods, unless they say otherwise.
    reads_text: whether the backend tokenises prompts itself, as a server does. Its requests carry a
      PromptText, and it refuses prompts that do not fit.
    borrows: whether it can serve reuse="anywhere".
    """

    reads_text: bool
    borrows: bool

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

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        """Return a reader for this request's answer; None if its reasoning is not to be told apart.

        Whoever reads `generate` uses it, as a second attempt at an answer may begin in its middle. A
        backend whose deltas are divided already returns None.
        """

    def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        """Yield the answer while it is generated. Closing the generator aborts and frees its memory.

        Raises GenerationFailed if this request failed and others go on; EngineDied if the model's
        process is gone. After EngineDied, close() and start() may be called again. A backend that reads
        text raises the errors of bad requests here.
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

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        """Return for each request whether all that it would leave in the cache is in some tier already.

        That counts as a use of the documents of those that are no guesses. False where a backend cannot
        tell. Raises EngineDied if the model's process is gone.
        """

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        """Keep from eviction what these requests would leave in the cache, all or none.

        Computes nothing; what is missing is kept once it is computed. Returns for each request what is
        kept of it now.
        Raises NoRoomToKeep, CannotKeep, or EngineDied if the model's process is gone.
        """

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        """Keep these sets of a tenant's documents no longer. Those that are not kept are ignored.

        Raises CannotKeep or EngineDied.
        """

    async def kept(self) -> Sequence[Kept]:
        """Return what is kept, in the order in which that was asked for.

        Raises CannotKeep or EngineDied.
        """

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        """Return the knowledge tree as of now, with at most this many documents; None without a tree.

        with_bloom_filter: whether to add one where there are more documents than a list may have.
        Raises EngineDied if the model's process is gone.
        """

    def counters(self) -> Counters:
        """Return the counts of what the tiers have done, as of the request that ended last."""

    async def close(self) -> None:
        """Free everything: processes, memory, files. A second call does nothing."""
