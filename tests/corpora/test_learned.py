"""Texts that recur become documents by themselves, until they are removed or not used for long."""

from __future__ import annotations

import pytest
from made_up_pages import PAGES, numbered

from ragcache_engine.corpora import learned as learned_module
from ragcache_engine.corpora.learned import CORPUS, LearnedDocuments
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.prompt import Span


class Server:
    """Finds documents in prompts, and learns others."""

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.corpora = Corpora(most_bytes)
        self.learned = LearnedDocuments(self.corpora)

    def read(self, *pages: int, owner: str | None = "shop") -> tuple[Span, ...]:
        prompt = numbered(*(PAGES[page] for page in pages))
        spans = self.corpora.find(owner, prompt)
        if self.learned.learn(owner, prompt, spans):
            spans = self.corpora.find(owner, prompt)
        return spans

    def texts(self, owner: str | None = "shop") -> list[str]:
        listed = self.corpora.documents(owner, CORPUS)
        return [self.corpora.document(owner, CORPUS, one.id).text for one in listed]


def test_a_text_is_a_document_from_the_second_prompt_on_that_has_it():
    server = Server()
    assert server.read(0, 1, 2) == ()
    assert len(server.read(3, 2, 1)) == 2
    assert server.texts() == [PAGES[2], PAGES[1]]
    assert len(server.read(4, 1, 2)) == 2


def test_one_tenants_texts_are_no_other_tenants_documents():
    server = Server()
    server.read(0, 1, 2)
    server.read(3, 2, 1)
    assert server.read(2, 1, owner="press") == ()
    assert server.texts("press") == []


def test_what_is_removed_stays_so_until_it_recurs_anew():
    server = Server()
    server.read(0, 1, 2)
    server.read(3, 2, 1)
    server.corpora.drop("shop", CORPUS)
    server.learned.forget(server.corpora.owed())
    assert server.read(5, 2) == ()
    assert len(server.read(6, 2)) == 1


def test_the_longest_unused_ones_make_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(learned_module, "MOST_BYTES", 2 * max(map(len, PAGES)))
    server = Server()
    server.read(0, 1, 2)
    server.read(3, 2, 1)
    server.read(4, 2)  # used once more
    server.read(5, 0, 3)
    assert PAGES[1] not in server.texts()
    assert PAGES[2] in server.texts() or PAGES[3] in server.texts()
    server.learned.forget(server.corpora.owed())
    assert len(server.read(6, 5)) == 1, "nobody asked to forget what was seen"


def test_what_clients_register_goes_first():
    server = Server(most_bytes=100)
    server.read(0, 1, 2)
    assert server.read(3, 2, 1) == ()
