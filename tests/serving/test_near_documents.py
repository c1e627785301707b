"""What is near the documents of prompts is prepared in idle time, whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from ragcache_engine.anywhere.donor_preparation import PreparingBackend
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora.document import Registered
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.prompt import token_segments
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.serving.known_contexts import KnownContexts
from ragcache_engine.serving.near_documents import NearDocuments
from ragcache_engine.values import ONE_TOKEN

LINE = "Page {0} tells of the sea at depth {0}, where it is cold and dark, and of its fish. "
TEXTS = [LINE.format(n) * 3 for n in range(12)]


class Listening(MemoryBackend):
    def __init__(self) -> None:
        super().__init__(recompute_ratio=0.1)
        self.prepared: list[list[str]] = []

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.prepared.append(request.named_documents)
        async for delta in super().generate(request):
            yield delta


class Server:
    """A backend that prepares when idle, and the registered documents that it knows."""

    def __init__(self, corpora: Corpora) -> None:
        self.inner, self.corpora = Listening(), corpora
        self.preparing = PreparingBackend(self.inner, idle_s=0.0)
        threads = DaemonThreads(1, "tokenizing")
        self.near = NearDocuments(corpora, self.preparing, KnownContexts(), threads)

    async def answer(self, *pages: int, tenant: str | None = "shop") -> None:
        text = "Answer.\n\n" + "\n\n".join(TEXTS[page] for page in pages) + "\n\nWhy?"
        with self.preparing.idle.request():
            tokens = self.preparing.tokenize(text)
            spans = self.corpora.find(tenant, text)
            segments = token_segments(tokens, spans)
            asked = BackendRequest("asked", tokens, segments, ONE_TOKEN, tenant, spans=spans)
            await self.near.note(asked)

    async def rest(self) -> None:
        async with asyncio.timeout(20):
            while any(self.preparing.report()[name] for name in ("unprepared", "found_unprepared")):
                await asyncio.sleep(0.01)


@pytest.fixture
def corpora() -> Corpora:
    """Return corpora of a tenant; pages are near those of nearly their number."""
    corpora = Corpora()
    for number, text in enumerate(TEXTS):
        corpora.put("shop", "sea", Registered(f"{number}", text, vector=[1.0, number / 10]))
    return corpora


def numbers_in(prepared: list[list[str]]) -> set[int]:
    return {int(name.rpartition("/")[2]) for names in prepared for name in names}


def test_the_nearest_documents_of_a_prompt_are_prepared_behind_its_beginning(corpora):
    async def scenario() -> list[list[str]]:
        server = Server(corpora)
        await server.preparing.start()
        corpora.near("shop:sea/0")
        await server.answer(0, 1)
        await server.rest()
        return server.inner.prepared

    asked, *near = asyncio.run(scenario())
    assert asked[:2] == ["shop:sea/0", "shop:sea/1"]
    seconds = [names[1] for names in near]
    assert {"shop:sea/2", "shop:sea/3", "shop:sea/4"} <= {*seconds}
    assert all(names[0] == "shop:sea/0" for names in near), "the prompt began with it"
    assert all(len(names) == 3 for names in near), "each is stored behind its own neighbour"
    assert max(numbers_in(near)) < 8, "not the whole corpus"


def test_what_is_removed_is_not_prepared(corpora):
    async def scenario() -> list[list[str]]:
        server = Server(corpora)
        await server.preparing.start()
        corpora.near("shop:sea/0")
        with server.preparing.idle.request():
            await server.answer(0, 1)
            corpora.remove("shop", "sea", ["2"])
            owed = corpora.owed()
            await server.preparing.forget([*owed])
            corpora.pay(owed)
        await server.rest()
        return server.inner.prepared

    assert 2 not in numbers_in(asyncio.run(scenario()))


def test_without_vectors_nothing_is_near():
    corpora = Corpora()
    for number, text in enumerate(TEXTS):
        corpora.put(None, "sea", Registered(f"{number}", text))

    async def scenario() -> list[list[str]]:
        server = Server(corpora)
        await server.preparing.start()
        await server.answer(0, 1, tenant=None)
        await server.rest()
        return server.inner.prepared

    assert asyncio.run(scenario()) == [["sea/0", "sea/1"]]


def test_a_tenants_prompts_prepare_for_that_tenant_alone(corpora):
    async def scenario() -> list[list[str]]:
        server = Server(corpora)
        await server.preparing.start()
        await server.answer(0, 1, tenant="press")
        await server.rest()
        return server.inner.prepared

    assert asyncio.run(scenario()) == [], "its prompts have none of the shop's documents"
