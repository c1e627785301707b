"""A Backend that passes everything on to another one, for those that change only a little of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ragcache_engine.chat import ToolReader
from ragcache_engine.prompt import ForgetLog
from ragcache_engine.protocols import (
    Backend,
    BackendRequest,
    Conversation,
    Delta,
    ReasoningReader,
)
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import ModelLimits, SamplingOptions, TokenizedPrompt


class ForwardingBackend:
    """Does what `inner` does."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.borrows = inner.borrows
        self.reads_text = inner.reads_text
        self.now = inner.now

    async def start(self) -> ModelLimits:
        return await self.inner.start()

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        return self.inner.tokenize(text, add_special_tokens)

    def detokenize(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.inner.detokenize(token_ids, skip_special_tokens)

    def check(self, options: SamplingOptions) -> None:
        self.inner.check(options)

    def render(self, conversation: Conversation) -> str:
        return self.inner.render(conversation)

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        return self.inner.tool_reader(tools)

    def reasoning_reader(self, request: BackendRequest) -> ReasoningReader | None:
        return self.inner.reasoning_reader(request)

    def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        return self.inner.generate(request)

    async def clear_cache(self) -> bool:
        return await self.inner.clear_cache()

    async def forget(self, document_ids: Sequence[str]) -> None:
        await self.inner.forget(document_ids)

    def adopted(self, request_id: str) -> None:
        self.inner.adopted(request_id)

    def counters(self) -> Counters:
        return self.inner.counters()

    async def touch_if_cached(self, requests: Sequence[BackendRequest]) -> list[bool]:
        return await self.inner.touch_if_cached(requests)

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        return await self.inner.keep(requests, order)

    async def release(self, documents: Sequence[tuple[str, ...]], tenant: str | None) -> None:
        await self.inner.release(documents, tenant)

    async def kept(self) -> Sequence[Kept]:
        return await self.inner.kept()

    async def snapshot(
        self, documents: int, *, with_bloom_filter: bool = False
    ) -> TreeSnapshot | None:
        return await self.inner.snapshot(documents, with_bloom_filter=with_bloom_filter)

    async def close(self) -> None:
        await self.inner.close()


class WithdrawingBackend(ForwardingBackend):
    """Tells `inner` which documents of a request were forgotten since the request was planned.

    Retries, guesses and prepared prompts may all be older than the last `forget`.
    """

    def __init__(self, inner: Backend, forgotten: ForgetLog) -> None:
        super().__init__(inner)
        self._forgotten = forgotten

    def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if request.planned is not None:
            request = replace(request, withdrawn=self._withdrawn(request))
        return self.inner.generate(request)

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        """Keep nothing of what was forgotten since it was planned: none of its tokens."""
        are_withdrawn = [bool(self._withdrawn(one)) for one in requests]
        alive = [one for one, gone in zip(requests, are_withdrawn, strict=True) if not gone]
        kept = iter(await self.inner.keep(alive, order) if alive else ())
        return [
            Kept(order.set_of(one.document_ids), one.tenant, order.tier.value, order.until_s, 0, 0)
            if is_withdrawn
            else next(kept)
            for one, is_withdrawn in zip(requests, are_withdrawn, strict=True)
        ]

    def _withdrawn(self, request: BackendRequest) -> Sequence[str]:
        if request.planned is None:
            return request.withdrawn
        return self._forgotten.since(request.planned, request.forget_ids)
