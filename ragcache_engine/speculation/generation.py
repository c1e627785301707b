"""A generation begun before anybody asked for it: what it brings is kept until somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.values import Document


@dataclass(slots=True, eq=False)
class Speculation:
    """One speculative generation, on the engine's loop.

    documents: what it is about, nearest first. begun_s: when, on the backend's clock.
    is_final: the search was over when it began.
    request: what the backend was asked; None while that is still being written.
    is_whole: the request is the whole prompt expected, not just its part up to the documents.
    is_under_way: the backend was asked.
    first_token_s: when its prefill was done; None while it runs.
    """

    documents: Sequence[Document]
    begun_s: float
    was_alone: bool = False
    is_final: bool = False
    request: BackendRequest | None = None
    is_whole: bool = False
    is_under_way: bool = False
    first_token_s: float | None = None
    cached_tokens: int = 0
    error: Exception | None = None
    task: asyncio.Task[None] | None = None
    _kept: list[Delta] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: bool = False

    def add(self, delta: Delta, now_s: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        if delta.cached is not None:
            self.cached_tokens = delta.cached.total
        self._kept.append(delta)
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come."""
        self._has_ended, self.error = True, error
        self._news.set()

    def is_answer_to(self, request: BackendRequest) -> bool:
        """Whether it is generating exactly what this request asks for."""
        mine = self.request
        return (
            mine is not None
            and self.is_under_way
            and self.is_whole
            and self.error is None
            and mine.options == request.options
            and is_same_prompt(mine, request)
        )

    def computed_tokens(self, now_s: float, token_s: float) -> int:
        """Prompt tokens computed so far. token_s: seconds a token takes, to estimate by."""
        if self.request is None:
            return 0
        length = len(self.request.prompt)
        if self.first_token_s is not None:
            return length - self.cached_tokens
        return min(length, int((now_s - self.begun_s) / token_s)) if token_s else 0

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """What it has brought, at once, then what it brings. Closing it ends the generation."""
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
                    self._news.clear()
                    await self._news.wait()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """The backend is told to abort, and keeps what it has computed as cached prefix."""
        if self.task:
            self.task.cancel()


def is_same_prompt(one: BackendRequest, other: BackendRequest) -> bool:
    """Whether they share every tensor of their prompts: same tokens, same tenant."""
    return (
        one.tenant == other.tenant
        and len(one.prompt) == len(other.prompt)
        and list(one.prompt.token_ids) == list(other.prompt.token_ids)
    )


def join_deltas(deltas: Sequence[Delta]) -> Delta:
    """One delta that says what all of them say."""
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        cached=next((d.cached for d in reversed(deltas) if d.cached is not None), None),
        finish_reason=deltas[-1].finish_reason,
    )
