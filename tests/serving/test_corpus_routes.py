"""Documents that clients register, and how prompts of clients that know nothing of it name them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_servers import OPERATOR, PRESS, SHOP, MemoryServer, serve
from made_up_pages import PAGES, numbered, page
from waiting import eventually

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.errors import EngineError, RequestTooLarge, RequestTooSlow
from ragcache_engine.serving import corpus_routes
from ragcache_engine.serving.corpus_routes import read_lines
from ragcache_engine.serving.settings import Limits

TIDES = "The moon pulls the oceans, and the tides follow it, twice a day."
SALT = "Rivers carry salt into the sea, and the sun takes the water away again."
SEA = {"salt": SALT, "tides": TIDES}
LINES = {"Content-Type": "application/x-ndjson"}


class Forgetting(MemoryBackend):
    """Remembers what it was asked to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[str] = []

    async def forget(self, document_ids: Any) -> None:
        self.forgotten += document_ids
        await super().forget(document_ids)


@pytest.fixture
def server(keys_file: Path) -> Iterator[MemoryServer]:
    with serve(Forgetting(), keys_file=keys_file) as server:
        yield server


def headers_of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def written(texts: dict[str, str]) -> bytes:
    return b"\n".join(
        json.dumps({"id": name, "text": text}).encode() for name, text in texts.items()
    )


def push(
    server: MemoryServer, key: str = SHOP, corpus: str = "sea", content: Any = None, **texts: str
) -> httpx2.Response:
    return httpx2.put(
        f"{server.url}/ragcache/corpora/{corpus}",
        content=written(texts or SEA) if content is None else content,
        headers=headers_of(key) | LINES,
    )


def ask(server: MemoryServer, method: str, path: str = "", key: str = SHOP) -> httpx2.Response:
    url = f"{server.url}/ragcache/corpora{path}"
    return httpx2.request(method, url, headers=headers_of(key))


def seen(server: MemoryServer, key: str = SHOP, path: str = "completions", **body: Any) -> Any:
    """What vLLM's server gets to see of a request, without what tells tenants apart."""
    sent = httpx2.post(f"{server.url}/v1/{path}", json=body, headers=headers_of(key))
    assert sent.status_code == 200, sent.text
    return server.seen[-1]


def documents_in(body: Any) -> list[str]:
    segments = body.get("kv_transfer_params", {}).get("ragcache", {}).get("segments", [])
    return [name for _, name in segments if name is not None]


def test_documents_are_registered_once_and_pushing_them_again_changes_nothing(server):
    assert push(server).json() == {"added": 2, "changed": 0, "same": 0}
    assert push(server).json() == {"added": 0, "changed": 0, "same": 2}
    assert ask(server, "GET").json()["sea"]["documents"] == 2
    assert server.backend.forgotten == []


def test_a_document_that_changes_is_forgotten_in_its_old_form(server):
    push(server)
    assert push(server, salt=SALT + " Now and then.").json()["changed"] == 1
    assert server.backend.forgotten == ["shop:sea/salt"]


def test_a_corpus_lists_its_documents_with_digests_that_tell_texts_apart(server):
    push(server)
    push(server, corpus="other", salt=SALT, tides=TIDES + "!")
    told = {
        name: [json.loads(line) for line in ask(server, "GET", f"/{name}").text.splitlines()]
        for name in ("sea", "other")
    }
    assert [one["id"] for one in told["sea"]] == ["salt", "tides"]
    same = [a["digest"] == b["digest"] for a, b in zip(*told.values(), strict=True)]
    assert same == [True, False]


def test_a_single_document_is_read_and_removed(server):
    content = json.dumps({"id": "a/b c", "text": SALT, "metadata": {"page": 3}}).encode()
    push(server, content=content)
    told = ask(server, "GET", "/sea/documents/a/b%20c")
    assert told.json() == {"id": "a/b c", "text": SALT, "metadata": {"page": 3}}
    assert ask(server, "DELETE", "/sea/documents/a/b%20c").json() == {"removed": 1}
    assert server.backend.forgotten == ["shop:sea/a/b c"]
    assert ask(server, "GET", "/sea/documents/a/b%20c").status_code == 404
    assert ask(server, "DELETE", "/sea/documents/a/b%20c").status_code == 404


def test_a_removed_corpus_is_forgotten_whole(server):
    push(server)
    assert ask(server, "DELETE", "/sea").json() == {"removed": 2}
    assert server.backend.forgotten == ["shop:sea/salt", "shop:sea/tides"]
    assert ask(server, "GET").json() == {}
    assert documents_in(seen(server, prompt=SALT)) == []


def test_many_documents_are_removed_at_once_and_unknown_ones_are_none(server):
    push(server)
    url = f"{server.url}/ragcache/corpora/sea/remove"
    told = httpx2.post(url, json={"ids": ["salt", "unknown"]}, headers=headers_of(SHOP))
    assert told.json() == {"removed": 1}
    assert server.backend.forgotten == ["shop:sea/salt"]


def test_what_could_not_be_forgotten_is_forgotten_after_the_next_prompt(server, monkeypatch):
    push(server)
    forget = server.backend.forget

    async def fail(document_ids: Any) -> None:
        raise EngineError("the disk does not answer")

    monkeypatch.setattr(server.backend, "forget", fail)
    assert ask(server, "DELETE", "/sea").status_code == 500
    monkeypatch.setattr(server.backend, "forget", forget)
    seen(server, prompt="Why is the sky blue?")
    assert eventually(lambda: server.backend.forgotten == ["shop:sea/salt", "shop:sea/tides"])


def test_an_id_may_begin_as_paths_do(server):
    push(server, **{"documents/salt": SALT, "salt": TIDES})
    assert ask(server, "DELETE", "/sea/documents/documents/salt").json() == {"removed": 1}
    assert ask(server, "GET", "/sea/documents/salt").json()["text"] == TIDES
    assert ask(server, "DELETE", "/sea/nonsense/documents/salt").status_code == 404


def test_where_there_are_operators_only_they_change_what_is_everybodys():
    with serve(MemoryBackend()) as server:  # an operator's key, and no file
        url = f"{server.url}/ragcache/corpora/sea"
        assert httpx2.put(url, content=written(SEA), headers=LINES).status_code == 403
        assert push(server, OPERATOR).status_code == 200
        assert httpx2.delete(url).status_code == 403
        refused = httpx2.post(f"{url}/remove", json={"ids": ["salt"]})
        assert refused.status_code == 403
        assert httpx2.get(f"{server.url}/ragcache/corpora").json()["sea"]["documents"] == 2


def test_where_there_are_none_everybody_does():
    with serve(MemoryBackend(), operator_key=None) as server:
        url = f"{server.url}/ragcache/corpora/sea"
        assert httpx2.put(url, content=written(SEA), headers=LINES).status_code == 200
        assert httpx2.delete(url).json() == {"removed": 2}


def test_a_tenant_neither_sees_nor_removes_what_another_has(server):
    push(server)
    assert ask(server, "GET", key=PRESS).json() == {}
    assert ask(server, "GET", "/sea", PRESS).text == ""
    assert ask(server, "DELETE", "/sea", PRESS).json() == {"removed": 0}
    assert ask(server, "GET", "/sea/documents/salt", PRESS).status_code == 404
    assert documents_in(seen(server, PRESS, prompt=SALT)) == []
    assert documents_in(seen(server, SHOP, prompt=SALT)) == ["shop:sea/salt"]


def test_what_an_operator_registers_is_everybodys(server):
    push(server, OPERATOR)
    assert documents_in(seen(server, PRESS, prompt=SALT)) == ["sea/salt"]
    assert ask(server, "DELETE", "/sea", PRESS).json() == {"removed": 0}


@pytest.mark.parametrize("corpus", ["a%20b", "x" * 65, "%C3%A9", "a:b"])
def test_a_name_that_no_corpus_may_have_is_refused(server, corpus):
    assert push(server, corpus=corpus).status_code == 400
    assert ask(server, "GET").json() == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"id": "x"}', "text"),
        (b'{"id": "x", "text": 3}', "text"),
        (b'{"id": "", "text": "y"}', "id"),
        (b'{"id": "..", "text": "y"}', "id"),
        (b'{"id": "x", "text": "y", "vectors": []}', "vectors"),
        (b'{"id": "x", "text": "\\ud800"}', ""),
    ],
)
def test_the_lines_before_a_wrong_one_are_registered(server, line, why):
    refused = push(server, content=b"\n".join([written(SEA), line, written({"x": SALT + "!"})]))
    assert refused.status_code == 400
    message = refused.json()["error"]["message"]
    assert "line 3: " in message
    assert "2 documents before it are registered" in message
    assert why in message
    assert ask(server, "GET").json()["sea"]["documents"] == 2


def test_a_corpus_without_room_is_refused_with_what_has_room_registered():
    with serve(MemoryBackend(), corpora=Corpora(most_bytes=20_000)) as small:
        refused = push(small, OPERATOR, **{str(n): f"{n} {SALT}" for n in range(100)})
        assert refused.status_code == 413
        assert refused.json()["error"]["kind"] == "CorpusTooLarge"
        assert 0 < ask(small, "GET", key=OPERATOR).json()["sea"]["documents"] < 100


def test_a_body_of_another_kind_is_refused(server):
    url = f"{server.url}/ragcache/corpora/sea"
    sent = httpx2.put(
        url, content=written(SEA), headers=headers_of(SHOP) | {"Content-Type": "text/plain"}
    )
    assert sent.status_code == 400
    assert "x-ndjson" in sent.json()["error"]["message"]


def test_nobody_registers_without_a_key(server):
    url = f"{server.url}/ragcache/corpora/sea"
    assert httpx2.put(url, content=written(SEA), headers=LINES).status_code == 401


def test_a_corpus_may_be_longer_than_any_other_body(keys_file):
    with serve(MemoryBackend(), keys_file=keys_file, limits=Limits(body_bytes=10_000)) as server:
        texts = {str(number): f"{number} {SALT} " * 9 for number in range(300)}
        assert push(server, **texts).json()["added"] == 300


def read_all(*messages: dict[str, Any]) -> list[bytes | None]:
    coming = iter(messages)

    async def receive() -> Any:
        return next(coming)

    async def read() -> list[bytes | None]:
        return [line async for line in read_lines(receive)]

    return asyncio.run(read())


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(
    "parts",
    [[b"one\ntwo\nthree"], [b"o", b"ne\nt", b"wo\nthr", b"ee"], [b"one\n", b"two\n", b"three\n"]],
)
def test_lines_come_whole_however_they_were_cut(parts):
    assert read_all(*map(part, parts), part(b"", more=False)) == [b"one", b"two", b"three"]


def test_a_client_that_leaves_is_told_apart_from_one_that_is_done():
    assert read_all(part(b"one\ntw"), {"type": "http.disconnect"}) == [b"one", None]


def test_a_line_that_is_too_long_is_refused_before_it_is_whole(monkeypatch):
    monkeypatch.setattr(corpus_routes, "LONGEST_LINE_BYTES", 10)
    with pytest.raises(RequestTooLarge, match="a line has more"):
        read_all(part(b"123456"), part(b"78901"), part(b"never read"))


async def test_a_line_that_does_not_come_is_waited_for_no_longer(monkeypatch):
    monkeypatch.setattr(corpus_routes, "LINE_S", 0.05)

    async def receive() -> Any:
        await asyncio.sleep(60)

    with pytest.raises(RequestTooSlow, match="no line came"):
        await anext(read_lines(receive))


def test_a_client_that_leaves_in_the_middle_has_registered_its_whole_lines(server):
    body = written(SEA) + b'\n{"id": "half", "te'
    head = (
        f"PUT /ragcache/corpora/sea HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SHOP}\r\n"
        f"Content-Type: application/x-ndjson\r\nContent-Length: 10000\r\n\r\n"
    )
    address = httpx2.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(head.encode() + body)
    assert eventually(lambda: ask(server, "GET").json())
    assert ask(server, "GET").json()["sea"]["documents"] == 2


def test_a_completion_of_any_client_has_its_documents_named(server):
    push(server)
    prompt = f"Context:\n[1] {TIDES}\n[2] {SALT}\n\nQuestion: Why is the sea salty?"
    assert documents_in(seen(server, prompt=prompt)) == ["shop:sea/tides", "shop:sea/salt"]
    assert documents_in(seen(server, prompt=[prompt])) == ["shop:sea/tides", "shop:sea/salt"]


def test_documents_of_a_conversation_are_named_by_the_tokens_that_vllm_makes_of_it(server):
    push(server)
    messages = [{"role": "user", "content": f"{SALT}\nWhy is the sea salty?"}]
    assert documents_in(seen(server, path="chat/completions", messages=messages)) == [
        "shop:sea/salt"
    ]


def test_a_conversation_that_vllm_refuses_goes_to_it_as_it_came(server):
    push(server)
    body = seen(server, path="chat/completions", messages=[{"role": "stranger", "content": SALT}])
    assert documents_in(body) == []


def test_a_prompt_whose_client_names_its_documents_itself_is_left_as_it_is(server):
    push(server)
    ours = {"ragcache": {"documents": [[0, len(SALT), "mine"]]}}
    assert documents_in(seen(server, prompt=SALT, kv_transfer_params=ours)) == ["mine"]


@pytest.mark.parametrize("prompt", [[1, 2, 3], ["one", "two"], ""])
def test_prompts_without_one_text_are_left_as_they_are(server, prompt):
    push(server)
    assert documents_in(seen(server, prompt=prompt)) == []


@pytest.mark.parametrize(
    "other", [{"suffix": "the end"}, {"truncate_prompt_tokens": 5}, {"add_special_tokens": "false"}]
)
def test_a_completion_of_which_vllm_makes_another_prompt_is_left_as_it_is(server, other):
    push(server)
    assert documents_in(seen(server, OPERATOR, prompt=SALT, **other)) == []


def test_of_a_completion_only_the_prompt_is_read(server):
    push(server)
    messages = [{"role": "user", "content": SALT}]
    assert documents_in(seen(server, OPERATOR, prompt="Why?", messages=messages)) == []
    push(server, OPERATOR)
    assert documents_in(seen(server, OPERATOR, prompt=SALT, messages=messages)) == ["sea/salt"]
    assert documents_in(seen(server, OPERATOR, prompt="Why?", messages=messages)) == []


def test_a_conversation_with_pictures_is_left_as_it_is(server):
    push(server)
    parts = [{"type": "text", "text": SALT}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [{"role": "user", "content": parts}]
    assert documents_in(seen(server, path="chat/completions", messages=messages)) == []


def test_a_removed_document_is_forgotten_once_more_after_the_prompt_that_was_under_way(keys_file):
    with serve(Forgetting(), keys_file=keys_file) as server:
        push(server)
        server.before_answer = lambda: ask(server, "DELETE", "/sea")
        assert documents_in(seen(server, prompt=f"{SALT} {TIDES}")) != []
        forgotten = ["shop:sea/salt", "shop:sea/tides"]
        assert eventually(lambda: sorted(server.backend.forgotten) == forgotten)


def test_only_prompts_that_were_answered_are_noted_to_be_prepared(keys_file):
    noted: list[Any] = []
    with serve(MemoryBackend(), keys_file=keys_file, note_prompt=noted.append) as server:
        push(server)
        seen(server, prompt=f"{SALT} {TIDES}")
        assert eventually(lambda: len(noted) == 1)
        server.status = 400
        httpx2.post(
            f"{server.url}/v1/completions",
            json={"prompt": f"{TIDES} {SALT}"},
            headers=headers_of(SHOP),
        )
        server.status = 200
        seen(server, prompt=SALT)
        assert eventually(lambda: len(noted) == 2)
        assert [len(one.document_ids) for one in noted] == [2, 1], "not the one that was refused"


@pytest.mark.parametrize("key", [SHOP, OPERATOR])
def test_a_request_may_ask_for_an_exact_answer(server, key):
    push(server, key)
    body = seen(server, key, prompt=SALT, ragcache={"exact": True})
    assert body["kv_transfer_params"]["ragcache"]["exact"] is True
    assert "ragcache" not in body
    body = seen(server, key, prompt=SALT, ragcache={"exact": False})
    assert "exact" not in body["kv_transfer_params"]["ragcache"]


def test_a_header_asks_for_an_exact_answer_too(server):
    push(server)
    headers = headers_of(SHOP) | {"X-RAGCache-Exact": "1"}
    httpx2.post(f"{server.url}/v1/completions", json={"prompt": SALT}, headers=headers)
    assert server.seen[-1]["kv_transfer_params"]["ragcache"]["exact"] is True


@pytest.mark.parametrize("said", [True, "exact", {"exact": 1}, {"exact": "no"}, {"exakt": True}])
def test_a_wish_that_is_not_understood_is_refused(server, said):
    sent = httpx2.post(
        f"{server.url}/v1/completions",
        json={"prompt": SALT, "ragcache": said},
        headers=headers_of(SHOP),
    )
    assert sent.status_code == 400
    assert "borrows nothing" in sent.json()["error"]["message"]


@pytest.fixture
def learning(keys_file: Path) -> Iterator[MemoryServer]:
    with serve(Forgetting(), keys_file=keys_file, learns=True) as server:
        yield server


def asked_about(*pages: int) -> str:
    return numbered(*(PAGES[page] for page in pages), question=f"Why {pages}?")


def test_texts_that_recur_become_documents_of_their_tenant_alone(learning):
    found = [
        documents_in(seen(learning, prompt=asked_about(*pages)))
        for pages in ((0, 1, 2), (3, 2, 1), (4, 1, 2))
    ]
    assert [len(names) for names in found] == [0, 2, 2]
    assert set(found[1]) == set(found[2])
    assert all(name.startswith("shop:learned/") for name in found[2])
    assert documents_in(seen(learning, PRESS, prompt=asked_about(1, 2))) == []
    assert ask(learning, "GET").json()["learned"]["documents"] == 2
    assert ask(learning, "GET", key=PRESS).json() == {}


def test_what_was_learned_can_be_looked_at_and_forgotten(learning):
    for pages in ((0, 1), (2, 1)):
        seen(learning, prompt=asked_about(*pages))
    [listed] = ask(learning, "GET", "/learned").text.splitlines()
    name = json.loads(listed)["id"]
    assert ask(learning, "GET", f"/learned/documents/{name}").json()["text"] == PAGES[1]
    assert ask(learning, "DELETE", "/learned").json() == {"removed": 1}
    assert learning.backend.forgotten == [f"shop:learned/{name}"]
    assert documents_in(seen(learning, prompt=asked_about(3, 1))) == []


def test_what_callers_without_a_tenant_taught_is_shown_to_nobody(learning):
    for pages in ((0, 1), (2, 1)):
        seen(learning, OPERATOR, prompt=asked_about(*pages))
    [listed] = ask(learning, "GET", "/learned", OPERATOR).text.splitlines()
    shown = ask(learning, "GET", f"/learned/documents/{json.loads(listed)['id']}", OPERATOR)
    assert (shown.status_code, PAGES[1] in shown.text) == (403, False)
    assert ask(learning, "DELETE", "/learned", OPERATOR).json() == {"removed": 1}


def test_a_conversations_own_turns_are_no_documents(learning):
    said = [{"role": "user", "content": numbered(PAGES[0], PAGES[1])}]
    for turn in range(3):
        assert documents_in(seen(learning, path="chat/completions", messages=said)) == []
        said += [
            {"role": "assistant", "content": f"Because. {page()}"},
            {"role": "user", "content": f"And then, {turn}? {page()}"},
        ]
    assert ask(learning, "GET").json() == {}
