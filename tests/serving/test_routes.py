"""What a client asks below /ragcache, and what it may not ask of a server that others use as well."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_servers import OPERATOR, PRESS, SHOP, MemoryServer, serve

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.chat.calls import ToolReader
from ragcache_engine.chat.messages import NO_TEMPLATE_ARGS
from ragcache_engine.protocols import Conversation
from ragcache_engine.serving import routes
from ragcache_engine.values import SamplingOptions, TokenizedPrompt

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.fixture
def server(keys_file: Path) -> Iterator[MemoryServer]:
    with serve(MemoryBackend(), keys_file=keys_file) as server:
        yield server


def ask(server: MemoryServer, path: str, key: str, **body: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx2.post(f"{server.url}/ragcache{path}", json=body, headers=headers, timeout=60)


def kind_of(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["kind"])


# -- how much a request may hold -------------------------------------------------------------------

NAME, LONG_NAME = "d" * 512, "d" * 513
WORDS = "The moon pulls the oceans. " * 200
NAMED = {"ragcache": {"documents": [[0, 9, "tides"]]}}
SPANS = [[at, at + 1, "d"] for at in range(1001)]
DEEP = "[" * 300 + "]" * 300
TOO_MUCH: dict[str, tuple[str, dict[str, Any]]] = {
    "a document's long id": ("/generate", {"documents": [[0, 9, LONG_NAME]]}),
    "documents": ("/generate", {"documents": SPANS}),
    "a neighbour's long id": (
        "/generate",
        {"documents": [[0, 9, "d"]], "neighbours": {"d": [LONG_NAME, "text"]}},
    ),
    "a neighbour's long text": (
        "/generate",
        {"documents": [[0, 9, "d"]], "neighbours": {"d": ["n", "The sea. " * 100_000]}},
    ),
    "a long tenant": ("/generate", {"tenant": LONG_NAME}),
    "adopted guesses": ("/generate", {"adopted": ["g"] * 1001}),
    "a long guess": ("/generate", {"adopted": ["g" * 201]}),
    "stop strings": ("/generate", {"options": {"stop": ["s"] * 65}}),
    "long stop strings": ("/generate", {"options": {"stop": ["s" * 2000] * 3}}),
    "a long guide": (
        "/generate",
        {"options": {"guide": {"kind": "regex", "form": ["x" * 70_000]}}},
    ),
    "choices": ("/generate", {"options": {"guide": {"kind": "choice", "form": ["x"] * 1001}}}),
    "a deep guide": (
        "/generate",
        {"options": {"guide": {"kind": "json", "form": ['{"enum": ' + "[" * 5000]}}},
    ),
    "messages": ("/render", {"messages": HELLO * 100_000}),
    "tokens": ("/detokenize", {"token_ids": [1] * 100_000}),
}


class Reads(MemoryBackend):
    """A backend that notes how many characters it has read."""

    characters = 0

    def tokenize(self, text: str, add_special_tokens: bool = True) -> TokenizedPrompt:
        self.characters += len(text)
        return super().tokenize(text, add_special_tokens)

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        self.characters += 1
        return super().tool_reader(tools)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ragcache/generate", {"prompt": WORDS * 600, "request": "r"}),
        ("/ragcache/generate", {"prompt": " " * 3_000_000, "request": "r"}),
        ("/ragcache/tokenize", {"text": WORDS * 600}),
        ("/ragcache/tool_calls", {"tools": [], "text": WORDS * 600}),
        ("/v1/completions", {"prompt": WORDS * 600}),
        ("/v1/completions", {"prompt": ["Why?", WORDS * 600], "truncate_prompt_tokens": 1}),
        ("/v1/completions", {"prompt": WORDS * 600, "kv_transfer_params": NAMED}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS * 600}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORDS}] * 600}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": WORDS * 600}]}]},
        ),
        ("/tokenize", {"prompt": WORDS * 600}),
        ("/tokenize", {"messages": [{"role": "user", "content": WORDS * 600}]}),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_read(
    keys_file: Path, path: str, body: dict[str, Any]
):
    backend = Reads()
    with serve(backend, keys_file=keys_file) as server:
        answer = httpx2.post(
            f"{server.url}{path}", json=body, headers={"Authorization": f"Bearer {SHOP}"}
        )
    assert (answer.status_code, kind_of(answer)) == (400, "PromptTooLong")
    assert not server.seen
    assert not backend.characters


def guided(schema: str) -> dict[str, Any]:
    return {"prompt": "p", "request": "r", "options": {"guide": {"kind": "json", "form": [schema]}}}


def calling(calls: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": "a", "tool_calls": calls}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *(("/detokenize", {"token_ids": [number]}) for number in (-5, 5, 1 << 31, 1 << 70)),
        ("/generate", guided('{"$ref": 3}')),
        ("/generate", guided('{"anyOf": 3}')),
        ("/generate", guided('{"enum": []}')),
        ("/generate", guided('{"type": "array", "minItems": 1e9}')),
        ("/generate", guided('{"type": "string", "minLength": 1000000000}')),
        ("/generate", guided('{"properties": 3, "required": ["a"]}')),
        ("/render", calling(True)),
        ("/render", calling([5])),
        ("/render", calling([{"function": 5}])),
        ("/render", calling([{"function": {"name": "f", "arguments": "{"}}])),
        ("/render", calling([{"function": {"name": "f", "arguments": "[" * 100_000}}])),
    ],
)
def test_what_makes_no_sense_is_a_bad_request(busy: MemoryServer, path: str, body: dict[str, Any]):
    answer = ask(busy, path, SHOP, **body)
    assert answer.status_code == 400
    assert kind_of(answer) in ("InvalidArgument", "UnsupportedGuide", "RefusedMessages")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "*/*"])
@pytest.mark.parametrize("path", ["/generate", "/tokenize", "/forget", "/nothing"])
def test_a_form_of_another_site_is_no_request(busy: MemoryServer, path: str, kind: str | None):
    # A browser sends these without asking first.
    headers = {"Authorization": f"Bearer {OPERATOR}"} | ({"Content-Type": kind} if kind else {})
    said = json.dumps({"prompt": "p", "request": "r"}).encode()
    answer = httpx2.post(f"{busy.url}/ragcache{path}", content=said, headers=headers)
    assert (answer.status_code, kind_of(answer)) == (400, "InvalidArgument")
    assert "application/json" in answer.text
    headers["Content-Type"] = "Application/JSON; charset=utf-8"
    answer = httpx2.post(f"{busy.url}/ragcache{path}", content=said, headers=headers)
    assert "application/json" not in answer.text


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryServer]:
    """A server for many questions that change nothing."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(f'[tenants]\nshop = ["{SHOP}"]\n[operators]\nanna = ["{OPERATOR}"]\n')
    with serve(MemoryBackend(), keys_file=path) as server:
        yield server


@pytest.mark.parametrize(("path", "body"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_more_than_a_server_takes_is_refused_by_name_and_in_few_words(
    busy: MemoryServer, path: str, body: dict[str, Any]
):
    asked = {"prompt": WORDS, "request": "r", **body} if path == "/generate" else body
    refused = ask(busy, path, SHOP, **asked)
    assert refused.status_code == 400, refused.text[:200]
    assert kind_of(refused) in ("InvalidArgument", "PromptTooLong")
    assert len(refused.text) < 1000


def test_as_much_as_a_server_takes_is_answered(busy: MemoryServer):
    body = {
        "documents": [[at * 5, at * 5 + 5, f"{at:04}{NAME[4:]}"] for at in range(1000)],
        "tenant": NAME,
        "adopted": ["g" * 200] * 1000,
        "options": {"stop": ["s" * 64] * 64, "max_tokens": 2},
    }
    answer = ask(busy, "/generate", SHOP, prompt=WORDS, request="r", **body)
    assert json.loads(answer.text.split("data: ")[-1])["finish"] == "length"


@pytest.mark.parametrize(
    "path", ["/generate", "/tokenize", "/detokenize", "/render", "/tool_calls", "/forget"]
)
def test_a_body_is_not_deep(busy: MemoryServer, path: str):
    body = f'{{"messages": {DEEP}, "options": {{"x": {DEEP}}}, "document_ids": {DEEP}}}'
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    refused = httpx2.post(f"{busy.url}/ragcache{path}", content=body, headers=headers)
    assert (refused.status_code, kind_of(refused)) == (400, "InvalidArgument")


def test_an_id_to_forget_is_short(busy: MemoryServer):
    assert ask(busy, "/forget", OPERATOR, document_ids=[NAME]).status_code == 200
    assert kind_of(ask(busy, "/forget", OPERATOR, document_ids=[LONG_NAME])) == "InvalidArgument"


# -- chat templates --------------------------------------------------------------------------------


def test_no_variable_takes_the_place_of_what_a_template_is_applied_with(server: MemoryServer):
    for name in NO_TEMPLATE_ARGS:
        for key in (SHOP, OPERATOR):
            args = {name: "{{ 6 * 7 }}"}
            refused = ask(server, "/render", key, messages=HELLO, template_args=args)
            assert (refused.status_code, kind_of(refused)) == (400, "InvalidArgument")
            assert name in refused.json()["error"]["message"]


def test_a_template_has_variables_of_its_own(server: MemoryServer):
    args = {"enable_thinking": False, "documents": [{"text": "The moon."}]}
    assert ask(server, "/render", SHOP, messages=HELLO, template_args=args).status_code == 200


class SlowTemplates(MemoryBackend):
    """Writes no conversation before it may. writing: how many it writes now; most: at most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.writing = self.most = 0
        self._lock = threading.Lock()

    def render(self, conversation: Conversation) -> str:
        with self._lock:
            self.writing += 1
            self.most = max(self.most, self.writing)
        self.may_write.wait(60)
        with self._lock:
            self.writing -= 1
        return super().render(conversation)


def test_templates_that_do_not_end_are_given_up_and_hold_up_nobody_else(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(routes, "RENDER_S", 0.5)
    backend = SlowTemplates()
    with (
        serve(backend, keys_file=keys_file) as server,
        ThreadPoolExecutor(40) as threads,
    ):
        asking = [threads.submit(ask, server, "/render", SHOP, messages=HELLO) for _ in range(40)]
        other = ask(server, "/generate", PRESS, prompt="Why?", request="r")
        assert json.loads(other.text.split("data: ")[-1])["finish"] == "stop"
        assert {kind_of(each.result()) for each in asking} == {"RefusedMessages"}
        assert backend.most == routes.AT_ONCE
        backend.may_write.set()
        monkeypatch.setattr(routes, "RENDER_S", 30)
        assert ask(server, "/render", SHOP, messages=HELLO).status_code == 200


class HangingDisk(MemoryBackend):
    async def forget(self, document_ids: Sequence[str]) -> None:
        await asyncio.Event().wait()


def test_a_disk_that_hangs_ends_a_forget_with_an_error_by_name(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(routes, "UPKEEP_S", 0.1)
    with serve(HangingDisk(), keys_file=keys_file) as server:
        answer = ask(server, "/forget", OPERATOR, document_ids=["d"])
    assert (answer.status_code, kind_of(answer)) == (500, "RequestTimedOut")


class SlowGuides(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def check(self, options: SamplingOptions) -> None:
        self.may_end.wait(60)


def test_a_guide_that_takes_for_ever_to_check_is_refused_and_delays_nobody(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(routes, "RENDER_S", 0.2)
    backend = SlowGuides()
    with serve(backend, keys_file=keys_file) as server:
        body = {
            "prompt": "Why?",
            "request": "r",
            "options": {"guide": {"kind": "regex", "form": ["a"]}},
        }
        for _ in range(12):
            assert kind_of(ask(server, "/generate", SHOP, **body)) == "UnsupportedGuide"
        assert ask(server, "/generate", PRESS, prompt="Why?", request="r").status_code == 200
        backend.may_end.set()
