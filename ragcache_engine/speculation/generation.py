"""A generation that was started before its request came: it keeps its deltas for that request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from ragcache_engine.protocols import BackendRequest, Delta, PromptText
from ragcache_engine.values import Document


@dataclass(slots=True, eq=False)
class Speculation:
    """One speculative generation. Use it on the engine's loop; times are on the backend's clock.

    documents: those of the prompt, nearest first.
    started_s: when the generation was planned; once `is_under_way`, when the backend was asked.
    was_alone: whether no other prefill ran when this one began.
    is_final: whether the search was over when it was planned.
    may_borrow: whether the answer depends on which parts of the prompt are documents.
    request: the request to the backend; None while it is being written.
    is_whole: whether the request is the whole expected prompt, not only its part up to the documents.
    is_under_way: whether the backend has got the request.
    first_token_s: when the prefill was done; None before that.
    cached_tokens: prompt tokens that the backend found cached.
    prompt_tokens: the prompt's tokens as the backend counted them; None if it did not tell.
    error: what the generation failed with; None if it did not fail.
    """

    documents: Sequence[Document]
    started_s: float
    was_alone: bool = False
    is_final: bool = False
    may_borrow: bool = False
    request: BackendRequest | None = None
    is_whole: bool = False
    is_under_way: bool = False
    first_token_s: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int | None = None
    error: Exception | None = None
    task: asyncio.Task[None] | None = None
    _kept: list[Delta] = field(default_factory=list)
    _has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: bool = False

    def add(self, delta: Delta, now_s: float) -> None:
        """Keep a delta that the backend generated now."""
        if self.first_token_s is None and not delta.is_start:
            self.first_token_s = now_s
        if delta.cached is not None:
            self.cached_tokens = delta.cached.total
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self._kept.append(delta)
        self._has_changed.set()

    def end(self, error: Exception | None = None) -> None:
        """Note that no more deltas come. error: why the generation failed; None if it did not."""
        self._has_ended, self.error = True, error
        self._has_changed.set()

    def is_answer_to(self, request: BackendRequest) -> bool:
        """Return whether this generates exactly what the request asks for."""
        mine = self.request
        return (
            mine is not None
            and self.is_under_way
            and self.is_whole
            and self.error is None
            and mine.options == request.options
            and self.is_for_prompt_of(request)
        )

    def is_for_prompt_of(self, request: BackendRequest) -> bool:
        """Return whether the prompts share every tensor: same tokens, same tenant, borrowed alike."""
        mine = self.request
        if mine is None or not is_same_prompt(mine, request):
            return False
        return not self.may_borrow or _documents_in(mine) == _documents_in(request)

    def count_computed_tokens(self, now_s: float, token_s: float) -> int:
        """Return how many prompt tokens were computed until now.

        token_s: seconds to compute one token. While the prefill runs, the number is estimated from it;
          0 makes that estimate 0.
        """
        if self.request is None:
            return 0
        length = self.prompt_tokens or self.request.expected_tokens
        if self.first_token_s is not None:
            return length - self.cached_tokens
        return min(length, int((now_s - self.started_s) / token_s)) if token_s else 0

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield what was generated so far as one delta, then each new delta.

        Closing the iterator cancels the generation. Raises the error that the generation failed with.
        """
        try:
            while True:
                if self._kept:
                    kept, self._kept = self._kept, []
                    yield (delta := join_deltas(kept))
                    if delta.finish_reason:
                        return
                elif self._has_ended:
                    if self.error:
                        raise self.error
                    return
                else:
                    self._has_changed.clear()
                    await self._has_changed.wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Abort the generation. The backend keeps what it has computed as a cached prefix."""
        if self.task:
            self.task.cancel()


def _documents_in(request: BackendRequest) -> Sequence[object]:
    """Return which parts of the prompt are documents; those after the last one play no part."""
    if isinstance(request.prompt, PromptText):
        return list(request.spans)
    parts = list(request.segments)
    while parts and parts[-1].document_id is None:
        parts.pop()
    return parts


def is_same_prompt(one: BackendRequest, other: BackendRequest) -> bool:
    """Return True if the prompts have the same tokens and tenant, and are to borrow alike."""
    if (one.tenant, one.is_exact, one.recompute_ratio, one.contexts) != (
        other.tenant,
        other.is_exact,
        other.recompute_ratio,
        other.contexts,
    ):
        return False
    mine, theirs = one.prompt, other.prompt
    if isinstance(mine, PromptText) or isinstance(theirs, PromptText):
        specials = (one.options.add_special_tokens, other.options.add_special_tokens)
        return mine.text == theirs.text and specials[0] == specials[1]
    return len(mine) == len(theirs) and list(mine.token_ids) == list(theirs.token_ids)


def join_deltas(deltas: Sequence[Delta]) -> Delta:
    """Return one delta with the text and tokens of all, and the last cache hits and finish reason."""
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        cached=deltas[-1].cached
        if deltas[-1].finish_reason
        else next((d.cached for d in reversed(deltas) if d.cached is not None), None),
        finish_reason=deltas[-1].finish_reason,
        reuse=deltas[-1].reuse,
        why_exact=deltas[-1].why_exact,
        sources=deltas[-1].sources,
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        prompt_tokens=next((d.prompt_tokens for d in deltas if d.prompt_tokens is not None), None),
        reasoning="".join(delta.reasoning for delta in deltas),
        reasoning_tokens=deltas[-1].reasoning_tokens,
    )
