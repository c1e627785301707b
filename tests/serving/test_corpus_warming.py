"""A corpus is computed behind the beginning of the latest prompt, before anybody asks about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest
from http_servers import OPERATOR, PRESS, SHOP, MemoryServer, serve
from waiting import eventually

from ragcache_engine import RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora import CorpusWarmed, Registered, ServerCorpora
from ragcache_engine.errors import (
    EngineDied,
    EngineError,
    InvalidArgument,
    ServerBusy,
    UnknownDocument,
    UnknownTemplate,
)
from ragcache_engine.protocols import BackendRequest, Delta
from ragcache_engine.serving.corpus_warming import CorpusWarming
from ragcache_engine.serving.recognising import recognise
from ragcache_engine.serving.routes import Served

LINE = "Page {0} tells of the sea at depth {0}, where it is cold and dark, and of its fish. "
PAGES = [Registered(f"page {n}", LINE.format(n) * 6, vector=[1.0, n / 10]) for n in range(6)]
SYSTEM = "Answer from these texts.\n\n"


class Listening(MemoryBackend):
    """Remembers the prompts that it computed; the next one fails with `error`, if there is one."""

    def __init__(self, recompute_ratio: float | None = None) -> None:
        super().__init__(context_tokens=512, recompute_ratio=recompute_ratio)
        self.requests: list[BackendRequest] = []
        self.error: Exception | None = None

    async def generate(self, request: BackendRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        async for delta in super().generate(request):
            yield delta


@pytest.fixture(params=["exact", "anywhere"])
def server(request: pytest.FixtureRequest, keys_file: Path) -> Iterator[MemoryServer]:
    is_exact = request.param == "exact"
    backend = Listening(None if is_exact else 0.1)
    reuse = {} if is_exact else {"reuse": "anywhere"}
    with serve(backend, keys_file=keys_file, reuse=reuse) as server:
        corpora_of(server).push("sea", PAGES)
        yield server


def corpora_of(server: MemoryServer, key: str = SHOP) -> ServerCorpora:
    return ServerCorpora(server.url, key)


def ask(server: MemoryServer, *pages: int, key: str = SHOP) -> None:
    texts = "\n\n".join(PAGES[page].text for page in pages)
    body = {"prompt": f"{SYSTEM}{texts}\n\nHow deep is it?"}
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers).is_success


def computed(server: MemoryServer) -> list[BackendRequest]:
    assert isinstance(server.backend, Listening)
    return server.backend.requests


def test_before_any_question_it_is_not_known_how_prompts_begin(server):
    with pytest.raises(UnknownTemplate, match="ask one question"):
        corpora_of(server).warm("sea")
    assert not computed(server)


def test_after_one_question_all_documents_are_computed_behind_its_beginning(server):
    ask(server, 0, 1)
    told: list[tuple[int, int]] = []
    warmed = corpora_of(server).warm("sea", done=lambda *at: told.append(at))
    assert warmed == CorpusWarmed(prepared=6)
    assert told == [(done, 6) for done in range(1, 7)]
    assert all(one.tokens.text.startswith(SYSTEM) for one in computed(server))
    firsts = [one.document_ids[0] for one in computed(server)]
    assert firsts == [f"shop:sea/{one.id}" for one in PAGES], "each begins a prompt"
    assert {one.tenant for one in computed(server)} == {"shop"}
    assert len({one.request_id for one in computed(server)}) == len(computed(server))


def test_what_is_cached_is_not_computed_again(server):
    ask(server, 0, 1)
    corpora_of(server).warm("sea")
    first = len(computed(server))
    assert corpora_of(server).warm("sea") == CorpusWarmed(cached=6)
    assert len(computed(server)) == first


def test_a_server_that_borrows_stores_each_document_behind_its_neighbour_too(server):
    ask(server, 0, 1)
    corpora_of(server).warm("sea")
    behind = [[*one.contexts] for one in computed(server)]
    borrows = server.backend.borrows
    assert all(len(names) == (2 if borrows else 0) for names in behind)
    assert all(one.makes_donors == borrows for one in computed(server))


def test_only_some_documents_are_computed_if_they_are_named(server):
    ask(server, 0, 1)
    assert corpora_of(server).warm("sea", ["page 3"]) == CorpusWarmed(prepared=1)
    assert [one.document_ids for one in computed(server)] == [["shop:sea/page 3"]]
    with pytest.raises(UnknownDocument, match="page 77"):
        corpora_of(server).warm("sea", ["page 3", "page 77"])


def test_a_corpus_that_is_not_there_or_is_anothers_is_named(server):
    ask(server, 0, 1)
    with pytest.raises(UnknownDocument, match="no corpus 'land'"):
        corpora_of(server).warm("land")
    with pytest.raises(UnknownDocument, match="no corpus 'sea'"):
        corpora_of(server, PRESS).warm("sea")


async def test_of_two_that_begin_together_one_is_told_to_wait():
    backend = Listening()
    served = Served(backend, await backend.start(), ("any",))
    for page in PAGES:
        served.corpora.put(None, "sea", page)
    found = await recognise("/v1/completions", {"prompt": PAGES[0].text}, None, None, served)
    assert found
    served.beginnings.note(found)
    first, second = (CorpusWarming(None, None, "sea", None, served) for _ in range(2))
    async with aclosing(first.lines()) as lines:
        assert await anext(lines) == {"done": 1, "of": 6}
        with pytest.raises(ServerBusy, match="wait until they are"):
            await anext(second.lines())
        with pytest.raises(ServerBusy, match="wait until they are"):
            CorpusWarming(None, None, "sea", None, served)
    assert not served.warming


def test_no_corpus_is_warmed_for_a_salt_that_no_prompt_can_have(server):
    ask(server, 0, 1)
    for salt in ("anna@example.com", "a" * 123):
        with pytest.raises(InvalidArgument, match="none of @, / and"):
            corpora_of(server).warm("sea", cache_salt=salt)
    assert not computed(server)


def test_a_document_that_is_too_long_is_left_out_and_the_others_are_computed(server):
    corpora = corpora_of(server)
    corpora.push("sea", [*PAGES, Registered("long", "So much is known of it. " * 300)])
    ask(server, 0, 1)
    warmed = corpora.warm("sea")
    assert warmed.left_out == (2 if server.backend.borrows else 1)
    assert warmed.prepared + warmed.left_out == 7
    assert all("context" in why and "long" in documents for documents, why in warmed.why)


def test_a_document_that_was_removed_is_not_computed_and_begins_no_prompt(server):
    ask(server, 0, 1)
    corpora = corpora_of(server)
    corpora.push("sea", PAGES[1:])
    with pytest.raises(UnknownTemplate):  # the prompt began with it
        corpora.warm("sea")
    ask(server, 1, 2)
    assert corpora.warm("sea") == CorpusWarmed(prepared=5)
    assert not any("page 0" in one.tokens.text for one in computed(server))


def test_for_a_tenant_that_is_forgotten_meanwhile_nothing_more_is_computed(server, monkeypatch):
    ask(server, 0, 1)
    generate, forget, answered = (
        server.backend.generate,
        server.backend.forget,
        len(computed(server)),
    )
    begun, forgetting = asyncio.Event(), []

    async def forget_and_tell(document_ids: Collection[str]) -> None:
        begun.set()
        await forget(document_ids)

    async def generate_meanwhile(request: BackendRequest) -> AsyncGenerator[Delta, None]:
        if len(computed(server)) == answered + 2:
            forgetting.append(asyncio.create_task(operator.aforget_tenant("shop")))
            await begun.wait()
        async for delta in generate(request):
            yield delta

    monkeypatch.setattr(server.backend, "forget", forget_and_tell)
    monkeypatch.setattr(server.backend, "generate", generate_meanwhile)
    with RAGCacheEngine.connect(server.url, api_key=OPERATOR) as operator:
        warmed = corpora_of(server).warm("sea")
        assert eventually(forgetting[0].done)
    assert warmed == CorpusWarmed(prepared=3, left_out=3, why=warmed.why)
    assert all("forgotten" in why for _, why in warmed.why)
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    told = httpx2.post(f"{server.url}/ragcache/tree", json={"documents": 50}, headers=headers)
    assert told.json()["tree"]["documents"] == []


def test_an_error_that_concerns_all_ends_it_and_is_told(server):
    ask(server, 0, 1)
    server.backend.error = EngineDied("the model is gone")
    with pytest.raises(EngineError, match="the model is gone"):
        corpora_of(server).warm("sea")
    assert len(computed(server)) == 1


def test_a_client_that_leaves_ends_it(server, monkeypatch):
    ask(server, 0, 1)
    url, headers = f"{server.url}/ragcache/corpora/sea/warm", {"Authorization": f"Bearer {SHOP}"}
    ended = asyncio.Event()

    async def forever(request: BackendRequest) -> AsyncGenerator[Delta, None]:
        try:
            await asyncio.sleep(60)
            yield Delta("", ())
        finally:
            ended.set()

    monkeypatch.setattr(server.backend, "generate", forever)
    with (
        pytest.raises(httpx2.ReadTimeout),
        httpx2.stream("POST", url, headers=headers, json={}, timeout=0.5) as answer,
    ):
        answer.read()
    assert eventually(ended.is_set)
