"""The doors of a server: who comes in, as whose tenant, and with how much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from http_servers import OPERATOR, PRESS, SHOP, MemoryServer, serve
from starlette.types import Message, Receive, Scope, Send

from ragcache_engine import Document, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora import Registered, ServerCorpora
from ragcache_engine.protocols import Backend
from ragcache_engine.serving import doors as doors_module
from ragcache_engine.serving.doors import Doors
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.routes import Served
from ragcache_engine.serving.settings import Limits, read_limits
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.values import ModelLimits

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)


@pytest.fixture
def server(keys_file: Path) -> Iterator[MemoryServer]:
    with serve(MemoryBackend(), keys_file=keys_file, limits=Limits(body_bytes=50_000)) as server:
        yield server


@pytest.fixture
def open_server() -> Iterator[MemoryServer]:
    with serve(MemoryBackend()) as server:
        yield server


def ask(server: MemoryServer, path: str, key: str | None = None, **body: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if body:
        return httpx2.post(f"{server.url}{path}", json=body, headers=headers)
    return httpx2.get(f"{server.url}{path}", headers=headers)


def asked_with(server: MemoryServer, path: str, key: str | None, **headers: str) -> httpx2.Response:
    """Ask for completions or models with further headers; the stand-in answers with what it got."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        told["Authorization"] = f"Bearer {key}"
    return httpx2.post(f"{server.url}{path}", json={"prompt": "Why?"}, headers=told)


def seen(server: MemoryServer, path: str, key: str | None, **body: Any) -> dict[str, Any]:
    """What vLLM's server gets to see of a request."""
    assert ask(server, path, key, **body).status_code == 200
    return server.seen[-1]


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_health_needs_no_key(server: MemoryServer, path: str):
    assert ask(server, path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/ragcache/server", "/anything"])
def test_everything_else_needs_one(server: MemoryServer, path: str):
    assert ask(server, path).status_code == 401
    assert ask(server, path).headers["www-authenticate"] == "Bearer"
    assert ask(server, path, "a key of nobody's").status_code == 401


async def test_keys_are_read_before_anybody_comes():
    asked: list[str] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append("behind")

    def find_keys(scope: Scope) -> Keys:
        asked.append("keys")
        return Keys()

    doors = Doors(behind, Limits(), find_keys, serve_nothing)
    await doors({"type": "lifespan"}, never, never)  # type: ignore[arg-type]
    assert asked == ["keys", "behind"]


async def serve_nothing(scope: Scope) -> Served:
    """No engine: requests of OpenAI's API are passed on without one."""
    return Served(cast("Backend", None), ModelLimits(1, 1, 1), ())


async def never(*_: Message) -> Message:
    raise AssertionError


@pytest.mark.parametrize(
    "key", ["Schlüssel für den Bäcker", "la clé du marché, voilà", "\u9375" * 16]
)
def test_a_key_travels_as_utf_8(tmp_path: Path, key: str):
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants]\nshop = ["{key}"]', encoding="utf-8")
    with serve(MemoryBackend(), keys_file=file, operator_key=f"{key}!") as server:
        for known, is_operator in ((key, False), (f"{key}!", True)):
            headers = {"Authorization": f"Bearer {known}".encode()}
            told = httpx2.get(f"{server.url}/ragcache/server", headers=headers)
            assert told.json()["is_operator"] is is_operator
            with RAGCacheEngine.connect(server.url, api_key=known) as engine:
                assert engine.generate("Why?").text
        refused = httpx2.get(f"{server.url}/version", headers={"Authorization": b"Bearer \xff\xa0"})
        assert refused.status_code == 401


@pytest.mark.parametrize(
    "path", ["/metrics", "/sleep", "/v1/responses/r/cancel", "/reset_prefix_cache"]
)
def test_what_steers_the_server_or_tells_of_others_needs_an_operators_key(
    server: MemoryServer, path: str
):
    refused = ask(server, path, SHOP)
    assert refused.status_code == 403
    assert refused.json()["error"]["kind"] == "OperatorsOnly"
    assert ask(server, path, OPERATOR).status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metricsX", "/v1/models", "/anything"])
@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "PUT", "DELETE", "TRACE", "PROPFIND"])
def test_no_other_method_comes_in_without_a_key(server: MemoryServer, path: str, method: str):
    assert httpx2.request(method, f"{server.url}{path}").status_code == 401
    origin = {"Origin": "http://a.example"}
    assert httpx2.request(method, f"{server.url}{path}", headers=origin).status_code == 401


def test_a_browser_may_ask_what_it_may_ask(server: MemoryServer):
    asks = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    answer = httpx2.options(f"{server.url}/v1/completions", headers=asks)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    # The paths behind never see it.
    assert httpx2.options(f"{server.url}/metrics", headers=asks).text == "OK"


@pytest.mark.parametrize("key", [None, SHOP])
async def test_a_websocket_knows_no_tenants_and_needs_an_operators_key(
    keys_file: Path, key: str | None
):
    passed: list[str] = []

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        passed.append(scope["path"])

    doors = Doors(behind, Limits(), lambda scope: Keys(keys_file), serve_nothing)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    def socket(key: str | None) -> Scope:
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        extensions: dict[str, Any] = {"websocket.http.response": {}}
        told = {"type": "websocket", "path": "/v1/realtime", "headers": headers}
        return {**told, "extensions": extensions}

    await doors(socket(key), receive, send)
    assert sent[0]["status"] == (403 if key else 401)
    assert not passed
    await doors(socket(OPERATOR), receive, send)
    assert passed == ["/v1/realtime"]


def test_the_counters_of_all_tenants_are_for_operators(server: MemoryServer):
    assert ask(server, "/ragcache/counters", SHOP).status_code == 403
    assert ask(server, "/ragcache/counters", OPERATOR).json()["ended"] == 0


def test_an_operator_forgets_a_tenant_with_all_that_it_registered(server: MemoryServer):
    def found(key: str, tenant: str | None = None) -> int:
        with RAGCacheEngine.connect(server.url, api_key=key) as engine:
            return engine.generate(TIDES.text, [TIDES], tenant=tenant).usage.cached.total

    for key in (SHOP, PRESS):
        ServerCorpora(server.url, api_key=key).push("sea", [Registered("tides", TIDES.text)])
    found(SHOP, tenant="anna")
    found(PRESS)
    assert ask(server, "/ragcache/forget", SHOP, tenants=["shop"]).status_code == 403
    assert ask(server, "/ragcache/forget", OPERATOR, tenants=[""]).status_code == 400
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    nothing = httpx2.post(f"{server.url}/ragcache/forget", json={}, headers=headers)
    assert nothing.status_code == 400, "it does not say what to forget"
    with RAGCacheEngine.connect(server.url, api_key=OPERATOR) as operator:
        operator.forget_tenant("shop")
    assert ServerCorpora(server.url, api_key=SHOP).summaries() == {}
    assert [*ServerCorpora(server.url, api_key=PRESS).summaries()] == ["sea"]
    assert found(SHOP, tenant="anna") == 0
    assert found(PRESS) > 0


def test_the_tree_of_all_tenants_is_for_operators(server: MemoryServer):
    with RAGCacheEngine.connect(server.url, api_key=SHOP) as shop:
        shop.generate(TIDES.text, [TIDES])
    assert ask(server, "/ragcache/tree", SHOP, documents=1).status_code == 403
    asked = {"documents": 1, "with_bloom_filter": True}
    tree = TreeSnapshot.from_dict(ask(server, "/ragcache/tree", OPERATOR, **asked).json()["tree"])
    assert tree.documents[0].documents == ("tides",)
    assert ask(server, "/ragcache/tree", OPERATOR, documents=0).status_code == 400


def test_without_keys_vllm_guards_its_own_paths(open_server: MemoryServer):
    assert ask(open_server, "/metrics").status_code == 200
    assert ask(open_server, "/ragcache/server").json()["is_operator"] is False
    assert ask(open_server, "/ragcache/server", OPERATOR).json()["is_operator"] is True


def test_a_path_below_ours_that_is_not_there_is_not_found(open_server: MemoryServer):
    assert ask(open_server, "/ragcache/nothing").status_code == 404


# -- tenants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("said", "salt"),
    [({}, "shop"), ({"cache_salt": "press"}, "shop::press"), ({"cache_salt": ["x"]}, "shop")],
)
def test_the_tenant_is_the_keys_and_not_the_bodys(
    server: MemoryServer, path: str, said: dict[str, Any], salt: str
):
    assert seen(server, path, SHOP, prompt="Why?", **said)["cache_salt"] == salt


def test_an_operator_names_the_tenant_itself(server: MemoryServer):
    body = seen(server, "/v1/completions", OPERATOR, prompt="Why?", cache_salt="shop")
    assert body["cache_salt"] == "shop"


@pytest.mark.parametrize("salt", ["anna@example.com", "a/b", "a\\b", "a" * 123])
def test_a_salt_that_vllm_would_not_take_is_refused_by_name(server: MemoryServer, salt: str):
    body = {"prompt": "Why?", "cache_salt": salt}
    headers = {"Authorization": f"Bearer {SHOP}"}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 400
    assert "none of @, / and" in answer.json()["error"]["message"]
    assert not server.seen


def test_a_tenant_says_nothing_that_only_operators_may_say(server: MemoryServer):
    body = seen(
        server,
        "/v1/completions",
        SHOP,
        prompt="Why?",
        priority=-5,
        vllm_xargs={"kv_transfer_params": 1, "mine": 2},
        kv_transfer_params={
            "do_remote_prefill": True,
            "ragcache": {
                "segments": [[3, "tides"]],
                "forget": ["tides"],
                "trusted": "guessed",
                "adopted": ["of another"],
            },
        },
    )
    assert body == {
        "prompt": "Why?",
        "cache_salt": "shop",
        "kv_transfer_params": {"ragcache": {"segments": [[3, "tides"]]}},
    }


STEERING = {
    "X_Vllm_Priority": "-100",
    "X_data_parallel_rank": "1",
    "X_Request_Id": "that-of-another",
    "X_Session_ID": "that-of-another",
    "X_Of_A_Newer_vLLM": "1",
}


def test_a_tenants_headers_say_nothing_that_its_body_may_not(server: MemoryServer):
    asked_with(server, "/v1/completions", SHOP, **STEERING, User_Agent="mine")
    headers = server.headers[-1]
    assert not any(name.startswith("x-") for name in headers)
    assert (headers["user-agent"], headers["content-type"]) == ("mine", "application/json")
    asked_with(server, "/v1/completions", OPERATOR, **STEERING)
    assert server.headers[-1]["x-vllm-priority"] == "-100"


def test_tenants_share_nothing_and_an_operator_may_ask_as_one_of_them(server: MemoryServer):
    with (
        RAGCacheEngine.connect(server.url, api_key=SHOP) as shop,
        RAGCacheEngine.connect(server.url, api_key=PRESS) as press,
        RAGCacheEngine.connect(server.url, api_key=OPERATOR) as operator,
    ):

        def cached(engine: RAGCacheEngine, tenant: str | None = None) -> int:
            return engine.generate(TIDES.text, [TIDES], tenant=tenant).usage.cached.total

        assert cached(shop) == 0
        assert cached(shop) > 0
        assert cached(press) == 0
        assert cached(press, "shop") == 0
        assert cached(operator) == 0
        assert cached(operator, "shop") > 0
        assert cached(shop, "anna") == 0
        assert cached(shop, "anna") > 0
        assert cached(operator, "shop::anna") > 0


def test_warming_is_for_ones_own_tenant(server: MemoryServer):
    with (
        RAGCacheEngine.connect(server.url, api_key=SHOP) as shop,
        RAGCacheEngine.connect(server.url, api_key=PRESS) as press,
    ):
        template = "{context}\n\n{question}"
        assert shop.warm([[TIDES]], template=template, tenant="press").computed_tokens > 0
        assert press.generate(f"{TIDES.text}\n\nWhy?", [TIDES]).usage.cached.total == 0
        assert press.warm([[TIDES]], template=template).computed_tokens > 0
        assert press.generate(f"{TIDES.text}\n\nWhy?", [TIDES]).usage.cached.total > 0


def test_a_tenant_brings_no_chat_template(server: MemoryServer):
    body = {"messages": [{"role": "user", "content": "Hi."}], "template": "{{ 1 }}"}
    assert ask(server, "/ragcache/render", SHOP, **body).status_code == 403
    assert ask(server, "/ragcache/render", OPERATOR, **body).json()["error"]["kind"] == (
        "RefusedMessages"  # as the memory backend takes none from anybody
    )


# -- documents and sizes ---------------------------------------------------------------------------


def test_documents_named_by_characters_reach_vllm_as_tokens(open_server: MemoryServer):
    prompt = "Read this. Tides follow the moon. Why?"
    named = {"ragcache": {"documents": [[10, 33, "tides"]]}}
    body = seen(open_server, "/v1/completions", None, prompt=prompt, kv_transfer_params=named)
    assert body["prompt"] == prompt
    assert body["kv_transfer_params"] == {
        "ragcache": {"segments": [[3, None], [8, "tides"], [10, None]], "starts": [3]}
    }


@pytest.mark.parametrize(
    "documents",
    [[[0, 99, "d"]], [[5, 5, "d"]], [[0, 4, "d"], [2, 6, "e"]], [[0, 4]], [[0, 4, 7]], "all", 7],
)
def test_documents_that_do_not_lie_in_the_prompt_are_refused(
    open_server: MemoryServer, documents: Any
):
    named = {"ragcache": {"documents": documents}}
    answer = ask(open_server, "/v1/completions", prompt="Why so blue?", kv_transfer_params=named)
    assert answer.status_code == 400
    assert answer.json()["error"]["kind"] == "InvalidArgument"
    ours = ask(
        open_server, "/ragcache/generate", prompt="Why so blue?", request="r", documents=documents
    )
    assert ours.status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/ragcache/generate"])
def test_a_body_that_is_too_large_is_refused_by_name(server: MemoryServer, path: str):
    answer = ask(server, path, SHOP, prompt="x" * 60_000)
    assert answer.status_code == 413
    assert "50,000 bytes" in answer.json()["error"]["message"]
    assert not server.seen


class CountedPart(bytes):
    """A part of a body that counts how often its size was asked for."""

    asked = 0

    def __len__(self) -> int:
        type(self).asked += 1
        return super().__len__()


async def test_each_part_of_a_body_is_measured_once(keys_file: Path):
    parts = [CountedPart(b" ")] * 2000 + [CountedPart(b"{}")]
    said = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    said[-1]["more_body"] = False

    async def receive() -> Message:
        return said.pop(0)

    assert await status_at(doors_of(keys_file), SHOP, receive) == 200
    assert CountedPart.asked <= 2 * len(parts)


async def test_a_completion_leaves_no_idle_time_until_it_has_its_answer(keys_file: Path):
    running: list[str] = []

    @contextmanager
    def occupied() -> Iterator[None]:
        running.append("a completion")
        yield
        running.clear()

    async def serve_one(scope: Scope) -> Served:
        return Served(cast("Backend", None), ModelLimits(1, 1, 1), (), occupied=occupied)

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        assert running == ["a completion"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    keys = Keys(keys_file)
    doors = Doors(behind, Limits(), lambda scope: keys, serve_one)
    assert await status_at(doors, SHOP, saying()) == 200
    assert running == []


def doors_of(keys_file: Path, limits: Limits | None = None) -> Doors:
    """Doors before a server that answers at once, with what it was asked."""
    keys = Keys(keys_file)

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    return Doors(behind, limits or Limits(), lambda scope: keys, serve_nothing)


async def status_at(doors: Doors, key: str, receive: Receive) -> int:
    """Ask for a completion, and return the status of the answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    await doors(scope, receive, send)
    return int(sent[0]["status"])


def saying(**body: Any) -> Receive:
    """A client that sends this body at once, and stays."""

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps({"prompt": "Why?", **body}).encode()}

    return receive


async def never_done() -> Message:
    """A client whose body never ends."""
    await asyncio.sleep(0.001)
    return {"type": "http.request", "body": b" ", "more_body": True}


async def test_unfinished_bodies_of_one_tenant_refuse_nobody_else_and_end_in_time(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doors_module, "BODY_S", 0.3)
    doors = doors_of(keys_file, Limits(requests=8))
    begun = [asyncio.ensure_future(status_at(doors, SHOP, never_done)) for _ in range(20)]
    await asyncio.sleep(0.1)
    assert await status_at(doors, PRESS, saying()) == 200
    assert sorted(await asyncio.gather(*begun)) == [408] * 6 + [429] * 14
    assert await status_at(doors, SHOP, saying()) == 200


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": ["Why?"] * 60},
        {"prompt": [[1, 2]] * 60},
        {"n": 60},
        {"n": "60"},
        {"n": 60.0},
        {"prompt": ["Why?"] * 10, "n": 6},
    ],
)
async def test_every_answer_of_a_request_needs_room(keys_file: Path, asked: dict[str, Any]):
    doors = doors_of(keys_file, Limits(requests=8))
    assert await status_at(doors, SHOP, saying(**asked)) == 413
    assert await status_at(doors, OPERATOR, saying(**asked)) == 413
    assert await status_at(doors, SHOP, saying(prompt=[1, 2] * 60)) == 200
    assert await status_at(doors, SHOP, saying(prompt=["Why?"] * 3, n=2)) == 200
    assert await status_at(doors_of(keys_file), SHOP, saying(**asked)) == 200


def test_a_body_that_does_not_tell_its_length_is_measured(server: MemoryServer):
    answer = httpx2.post(
        f"{server.url}/v1/completions",
        content=(b"x" * 1000 for _ in range(60)),
        headers={"Authorization": f"Bearer {SHOP}"},
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe"])
@pytest.mark.parametrize("path", ["/v1/completions", "/ragcache/generate"])
def test_what_is_no_json_object_is_refused(server: MemoryServer, path: str, content: bytes):
    headers = {"Authorization": f"Bearer {SHOP}"}
    answer = httpx2.post(f"{server.url}{path}", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["kind"] == "InvalidArgument"


def test_what_nobody_foresaw_is_logged_here_and_not_told(caplog: pytest.LogCaptureFixture):
    def fail(prompt: str) -> str:
        raise OSError("/secret is full")

    with serve(MemoryBackend(fail)) as server:
        answer = ask(server, "/ragcache/generate", prompt="Why?", request="r").text
    assert "GenerationFailed" in answer
    assert "secret" not in answer
    assert "OSError: /secret is full" in caplog.text


def test_what_a_client_wrote_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture):
    def fail(prompt: str) -> str:
        raise OSError(f"cannot read {prompt}")

    with serve(MemoryBackend(fail)) as server:
        ask(server, "/ragcache/generate", prompt="a\nERROR all is lost\x1b[2J", request="r")
    assert r"cannot read a\nERROR all is lost\x1b[2J" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\u202eb", "a b", "é"])
def test_a_requests_name_stands_in_logs_and_so_is_of_visible_characters(
    open_server: MemoryServer, name: str
):
    bodies = {
        "/ragcache/generate": {"prompt": "p", "request": name},
        "/v1/completions": {"prompt": "p", "request_id": name},
    }
    for path, body in bodies.items():
        refused = ask(open_server, path, **body)
        assert (refused.status_code, refused.json()["error"]["kind"]) == (400, "InvalidArgument")
    header = {"X-Request-Id": name.encode("utf-8").replace(b"\n", b"\x07")}
    refused = httpx2.post(f"{open_server.url}/v1/responses", json={}, headers=header)
    assert (refused.status_code, refused.json()["error"]["kind"]) == (400, "InvalidArgument")
    assert not open_server.seen


def test_a_refusal_quotes_no_control_character(open_server: MemoryServer):
    evil = "\u202e\x1b]52;c;x\x07"
    for body in ({evil: 1}, {"options": {evil: 1}}, {"documents": [[0, 9, evil]]}):
        text = ask(open_server, "/ragcache/generate", prompt="p", request="r", **body).text
        assert "\u202e" not in text
        assert "\x1b" not in str(json.loads(text))


def test_limits_come_from_the_environment():
    assert read_limits({}) == Limits()
    told = {
        "RAGCACHE_MAX_BODY": "1000",
        "RAGCACHE_MAX_REQUESTS": "5",
        "RAGCACHE_MAX_CORPORA": "9",
    }
    assert read_limits(told) == Limits(1000, 5, 9)
    with pytest.raises(ValueError, match="RAGCACHE_MAX_BODY must be a whole number"):
        read_limits({"RAGCACHE_MAX_BODY": "1MiB"})
