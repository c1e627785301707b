"""The client of registered documents: sends what the server lacks, and removes what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from http_servers import MemoryServer, serve

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora import Pushed, Registered, ServerCorpora
from ragcache_engine.corpora import client as client_module
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument, KeyRefused, ServerUnreachable

TEXT = "Rivers carry salt into the sea, and the sun takes the water away again, page {}."


def pages(*numbers: int, text: str = TEXT) -> list[Registered]:
    return [Registered(f"page/{n} ä", text.format(n), {"page": n}) for n in numbers]


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with serve(MemoryBackend(), operator_key=None) as server:
        yield server


@pytest.fixture
def corpora(server: MemoryServer) -> ServerCorpora:
    return ServerCorpora(server.url)


def test_a_corpus_becomes_what_is_pushed(corpora):
    assert corpora.push("sea", pages(1, 2, 3)) == Pushed(added=3)
    changed = pages(2, text="Of the sea nothing else is known yet, says page {}.")
    assert corpora.push("sea", [*pages(1), *changed, *pages(4)]) == Pushed(1, 1, 1, 1)
    assert [*corpora.digests("sea")] == ["page/1 ä", "page/2 ä", "page/4 ä"]


def test_pushing_again_sends_no_document(corpora):
    corpora.push("sea", pages(1, 2))
    sent: list[tuple[int, int]] = []
    assert corpora.push("sea", pages(1, 2), done=lambda *at: sent.append(at)) == Pushed(same=2)
    assert sent == []


def test_other_documents_stay_if_they_are_kept(corpora):
    corpora.push("sea", pages(1))
    assert corpora.push("sea", pages(2), keep=True) == Pushed(added=1)
    assert len(corpora.digests("sea")) == 2


def test_many_documents_go_in_several_requests_and_the_progress_is_told(corpora, monkeypatch):
    monkeypatch.setattr(client_module, "PUSHED_BYTES", 200)
    told: list[tuple[int, int]] = []
    assert corpora.push("sea", pages(*range(10)), done=lambda *at: told.append(at)).added == 10
    assert len(told) > 2
    assert told[-1] == (10, 10)


def test_vectors_of_any_kind_are_sent(corpora):
    with_vectors = [
        Registered(one.id, one.text, vector=np.array([1, n], np.float32))
        for n, one in enumerate(pages(1, 2))
    ]
    assert corpora.push("sea", with_vectors).added == 2
    assert corpora.push("sea", with_vectors).same == 2


def test_a_corpus_is_listed_and_removed(corpora):
    corpora.push("sea", pages(1, 2))
    assert corpora.summaries()["sea"]["documents"] == 2
    assert corpora.remove("sea") == 2
    assert corpora.summaries() == {}


def test_a_server_without_room_says_so_and_nothing_is_removed():
    with serve(MemoryBackend(), operator_key=None, corpora=Corpora(8_000)) as server:
        corpora = ServerCorpora(server.url)
        corpora.push("sea", pages(1))
        with pytest.raises(CorpusTooLarge, match="no room"):
            corpora.push("sea", pages(*range(2, 20)))
        assert "page/1 ä" in corpora.digests("sea")


def test_a_key_that_nobody_knows_is_refused(keys_file: Path):
    with (
        serve(MemoryBackend(), keys_file=keys_file) as server,
        pytest.raises(KeyRefused),
    ):
        ServerCorpora(server.url, "the key of a stranger").push("sea", pages(1))


def test_names_and_addresses_that_cannot_be_are_refused(corpora):
    with pytest.raises(InvalidArgument):
        corpora.push("", pages(1))
    with pytest.raises(InvalidArgument):
        corpora.push("a/b", pages(1))
    with pytest.raises(InvalidArgument):
        ServerCorpora("nowhere")


def test_a_server_that_nobody_started_is_unreachable(monkeypatch):
    monkeypatch.setattr("ragcache_engine.backends.server.connection.RETRY_WAITS_S", ())
    with pytest.raises(ServerUnreachable):
        ServerCorpora("http://127.0.0.1:9").summaries()
