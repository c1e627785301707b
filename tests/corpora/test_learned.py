"""Texts that recur become documents by themselves, until they are removed or not used for long."""

from __future__ import annotations

from made_up_pages import PAGES, numbered

from ragcache_engine.corpora.document import Registered
from ragcache_engine.corpora.learned import CORPUS, LEFT_TO_CLIENTS, LearnedDocuments
from ragcache_engine.corpora.registered import DOCUMENT_BYTES, Corpora
from ragcache_engine.prompt import Span


class Server:
    """Finds documents in prompts, and learns others."""

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.corpora = Corpora(most_bytes)
        self.learned = LearnedDocuments(self.corpora)

    def read(
        self, *pages: int, owner: str | None = "shop", salt: str | None = None
    ) -> tuple[Span, ...]:
        prompt = numbered(*(PAGES[page] for page in pages), question=f"Why {pages}?")
        spans = self.corpora.find(owner, prompt)
        if self.learned.learn(owner, salt or owner, prompt, spans):
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
    server.learned.forget_prompts("shop")
    assert server.read(5, 2) == ()
    assert len(server.read(6, 2)) == 1


def test_what_is_removed_from_everybodys_documents_becomes_no_tenants():
    server = Server()
    for page in (1, 2):
        server.corpora.put(None, "handbook", Registered(str(page), PAGES[page]))
    server.read(0, 1, 2)
    server.corpora.drop(None, "handbook")
    server.learned.forget_prompts(None)
    assert server.read(3, 2, 1) == ()
    assert server.texts() == []


def test_prompts_that_an_owner_keeps_apart_are_not_compared():
    server = Server()
    server.read(0, 1, 2, salt="shop::anna")
    assert server.read(3, 2, 1, salt="shop:bob") == ()


def test_the_longest_unused_ones_make_room_and_their_tensors_go_in_time():
    size_bytes = DOCUMENT_BYTES + max(map(len, PAGES))
    server = Server(most_bytes=LEFT_TO_CLIENTS * (2 * size_bytes + 100))
    server.read(0, 1, 2)
    server.read(3, 2, 1)
    server.read(4, 2)  # used once more
    moment = server.corpora.moment()
    server.read(5, 3)
    assert server.texts() == [PAGES[2], PAGES[3]]
    assert server.corpora.owed() == {}
    assert server.corpora.moment() == moment, "prompts under way go on with their documents"
    assert len(server.read(6, 5)) == 1, "nobody asked to forget what was seen"


def test_most_of_the_room_is_left_to_what_clients_register():
    server = Server(most_bytes=60_000)
    for turn in range(8):
        server.read(turn, (turn + 1) % 8, (turn + 3) % 8)
    for number in range(8):
        text = f"A client says this of number {number}. " * 20
        server.corpora.put("shop", "own", Registered(f"{number}", text))
    assert server.texts()
