"""The door of a fleet, in front of replicas that the test makes up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import httpx2
import pytest

from ragcache_engine.corpora import Registered
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.fleet_serving import ingress
from ragcache_engine.fleet_serving.ingress import FleetDoors
from ragcache_engine.fleet_serving.wire import (
    RECEIVED,
    AnswerHead,
    FleetBusy,
    FleetRequest,
    NamedAnswer,
    ReplicaAway,
    ReplicaLost,
)
from ragcache_engine.serving.keys import Keys
from ragcache_engine.serving.settings import Limits

EVENTS = (("content-type", "text/event-stream"),)
JSON = (("content-type", "application/json"),)
SHOP, OPERATOR = "the key of the shop", "the operator's own key"
WORDS = [f"word{number} " for number in range(20)]


def stream(words: Sequence[str]) -> list[bytes]:
    events = [json.dumps({"choices": [{"index": 0, "text": word}]}) for word in words]
    return [f"data: {event}\n\n".encode() for event in [*events]] + [b"data: [DONE]\n\n"]


class MadeUp:
    """Replicas as the test wants them. attempts: what each yields or raises, or for how long it waits."""

    def __init__(self, *attempts: Sequence[AnswerHead | bytes | Exception | float]) -> None:
        self.attempts = list(attempts)
        self.requests: list[FleetRequest] = []
        self.ended = 0

    async def send(self, request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        self.requests.append(request)
        try:
            for part in self.attempts.pop(0):
                await asyncio.sleep(part if isinstance(part, float) else 0)
                if isinstance(part, float):
                    continue
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            self.ended += 1

    async def send_to_all(self, request: FleetRequest) -> Sequence[tuple[AnswerHead, bytes]]:
        self.requests.append(request)
        return [(part[0], part[1]) for part in self.attempts]  # type: ignore[misc]

    async def ask_each(self, request: FleetRequest) -> Sequence[NamedAnswer]:
        self.requests.append(request)
        if not self.attempts:
            raise ReplicaLost("none of 2 replicas answered")
        return [
            NamedAnswer(f"r{number}", *part)  # type: ignore[arg-type]
            for number, part in enumerate(self.attempts)
        ]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "WAIT_S", 0.0)


@pytest.fixture
def keys(tmp_path) -> Keys:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants]\nshop = ["{SHOP}"]\n[operators]\nanna = ["{OPERATOR}"]\n')
    return Keys(file)


def client(
    replicas: MadeUp,
    keys: Keys | None = None,
    limits: Limits | None = None,
    key: str | None = None,
    corpora: Corpora | None = None,
) -> httpx2.AsyncClient:
    doors = FleetDoors(replicas, limits or Limits(), lambda scope: keys or Keys(), corpora)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    transport = httpx2.ASGITransport(app=doors)  # type: ignore[arg-type]
    return httpx2.AsyncClient(transport=transport, base_url="http://fleet", headers=headers)


@pytest.mark.parametrize("path", ["/ragcache/forget", "/metrics", "/v1/completions"])
@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
async def test_an_operators_key_goes_no_further_than_the_door(
    keys: Keys, path: str, has_file: bool, header: str
):
    known = keys if has_file else Keys(operator_key=OPERATOR)
    replicas = MadeUp([AnswerHead(200, JSON), b"# EOF" if path == "/metrics" else b"{}"])
    key = f"Bearer {OPERATOR}" if header == "authorization" else OPERATOR
    async with client(replicas, known, key=None) as door:
        method = "GET" if path == "/metrics" else "POST"
        await door.request(method, path, json={"prompt": "p"}, headers={header: key})
    (sent,) = replicas.requests
    assert sent.by_operator
    assert OPERATOR not in str(sent)


async def test_nobody_else_comes_as_an_operator(keys: Keys):
    for known, key in ((keys, SHOP), (Keys(operator_key=OPERATOR), SHOP), (Keys(), None)):
        replicas = MadeUp([AnswerHead(200, JSON), b"{}"])
        async with client(replicas, known, key=key) as door:
            await door.post("/v1/completions", json={"prompt": "p"})
        assert not replicas.requests[0].by_operator


def text_of(answer: httpx2.Response) -> str:
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events if event != "[DONE]")


ASK: dict[str, Any] = {"prompt": "why?", "stream": True, "temperature": 0}


async def test_an_answer_goes_through_as_it_is():
    replicas = MadeUp([AnswerHead(201, (*JSON, ("x-more", "1"))), b'{"a":', b"1}"])
    async with client(replicas) as door:
        answer = await door.post("/v1/completions?x=1", json={"prompt": "p"})
    assert (answer.status_code, answer.json(), answer.headers["x-more"]) == (201, {"a": 1}, "1")
    assert replicas.requests[0].target == "/v1/completions?x=1"
    assert json.loads(replicas.requests[0].body) == {"prompt": "p"}


@pytest.mark.parametrize("lost_at", [0, 1, 7, 20])
async def test_a_stream_whose_replica_dies_comes_whole_and_once(lost_at: int):
    first = [AnswerHead(200, EVENTS), *stream(WORDS)[:lost_at], ReplicaLost("killed")]
    replicas = MadeUp(first, [AnswerHead(200, EVENTS), *stream(["".join(WORDS)])])
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert text_of(answer) == "".join(WORDS)
    assert answer.text.count("[DONE]") == 1
    assert len(replicas.requests) == replicas.ended == 2


async def test_who_reads_a_stream_gets_signs_of_life_while_nothing_comes(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ingress, "ALIVE_S", 0.05)
    first = [AnswerHead(200, EVENTS), *stream(WORDS)[:5], 0.2, ReplicaLost("cut off")]
    replicas = MadeUp(first, [0.2, AnswerHead(200, EVENTS), *stream(["".join(WORDS)])])
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert text_of(answer) == "".join(WORDS)
    assert answer.text.count(": still waiting") >= 3
    assert '{"text": ""}' not in answer.text, "other clients know no such event"


@pytest.mark.parametrize("status", [200, 400])
async def test_our_own_client_gets_them_before_any_replica_has_its_request(
    monkeypatch: pytest.MonkeyPatch, status: int
):
    monkeypatch.setattr(ingress, "ALIVE_S", 0.05)
    said = (
        [AnswerHead(200, EVENTS), b'data: {"text": "So it is."}\n\n']
        if status == 200
        else [AnswerHead(400, JSON), b'{"error": {"kind": "PromptTooLong", "message": "why"}}']
    )
    replicas = MadeUp([0.2, ReplicaAway("cut off")], said)
    async with client(replicas) as door:
        answer = await door.post("/ragcache/generate", json={"prompt": "p"})
    assert answer.status_code == 200
    events = [json.loads(one[6:]) for one in answer.text.splitlines() if one.startswith("data: ")]
    assert events[0] == {"text": ""}
    assert events[-1] == (
        {"text": "So it is."}
        if status == 200
        else {"error": {"kind": "PromptTooLong", "message": "why"}}
    )


async def test_an_answer_in_one_piece_gets_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ingress, "ALIVE_S", 0.02)
    replicas = MadeUp([0.1, AnswerHead(200, JSON), 0.1, b'{"a": 1}'])
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert answer.json() == {"a": 1}


async def test_an_answer_in_one_piece_whose_replica_dies_is_asked_for_again():
    replicas = MadeUp(
        [AnswerHead(200, JSON), b'{"half', ReplicaLost("killed")],
        [AnswerHead(500, JSON), b"{}"],
        [AnswerHead(200, JSON), b'{"whole": 1}'],
    )
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert answer.json() == {"whole": 1}


@pytest.mark.parametrize(
    "error", [{"error": {"code": 500, "message": "dead"}}, {"error": {"kind": "EngineDied"}}]
)
async def test_a_model_that_dies_behind_its_server_counts_as_lost(error: dict[str, Any]):
    dead = f"data: {json.dumps(error)}\n\n".encode()
    replicas = MadeUp(
        [AnswerHead(200, EVENTS), *stream(WORDS)[:3], dead],
        [AnswerHead(200, EVENTS), *stream(WORDS)],
    )
    async with client(replicas) as door:
        assert text_of(await door.post("/v1/completions", json=ASK)) == "".join(WORDS)


async def test_an_answer_that_cannot_be_continued_ends_with_an_error():
    replicas = MadeUp(
        [AnswerHead(200, EVENTS), *stream(["one ", "two "]), ReplicaLost("killed")],
        [AnswerHead(200, EVENTS), *stream(["one ", "three "])],
    )
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert '"AnswersDiffer"' in answer.text
    assert "three" not in answer.text


@pytest.mark.parametrize("begun", [[RECEIVED], [AnswerHead(200, EVENTS), *stream(["one "])]])
async def test_a_request_that_ends_its_replicas_ends_two_at_most(
    begun: list[AnswerHead | bytes],
):
    replicas = MadeUp(*[[*begun, ReplicaLost("killed")]] * 20)
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert len(replicas.requests) == 2
    assert '"GenerationFailed"' in answer.text
    assert "2 replicas failed or ended" in answer.text
    if begun == [RECEIVED]:
        assert answer.status_code == 500
        assert answer.headers["x-should-retry"] == "false"  # OpenAI's clients would send it again


async def test_a_request_that_lost_replicas_before_they_had_it_is_tried_once_more():
    replicas = MadeUp(
        *[[ReplicaLost("dead already")]] * 2, [AnswerHead(200, JSON), b'{"whole": 1}']
    )
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert answer.json() == {"whole": 1}


async def test_a_replica_that_never_had_the_request_is_no_reason_to_give_it_up():
    replicas = MadeUp(*[[ReplicaAway("not there")]] * 5, [AnswerHead(200, JSON), b'{"whole": 1}'])
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert answer.json() == {"whole": 1}
    replicas = MadeUp(*[[ReplicaAway("not there")]] * 20)
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert answer.json()["error"]["kind"] == "GenerationFailed"
    assert len(replicas.requests) == ingress.ATTEMPTS


def named(words: Sequence[str]) -> list[bytes]:
    """The events of other paths, such as /v1/responses and /v1/messages."""
    kind = "response.output_text.delta"
    said = [json.dumps({"type": kind, "delta": word}) for word in words]
    return [f"event: {kind}\ndata: {one}\n\n".encode() for one in said]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_a_stream_that_cannot_be_continued_ends_by_name(path: str):
    whole = [AnswerHead(200, EVENTS), *named(WORDS)]
    replicas = MadeUp([*whole[:5], ReplicaLost("killed")], whole)
    async with client(replicas) as door:
        answer = await door.post(path, json={"input": "why?", "stream": True})
    assert answer.text.count("event: response") == 4
    assert '"AnswersDiffer"' in answer.text
    assert len(replicas.requests) == 1
    replicas = MadeUp([whole[0], ReplicaLost("killed")], whole)
    async with client(replicas) as door:
        answer = await door.post(path, json={"input": "why?", "stream": True})
    assert answer.text == b"".join(named(WORDS)).decode()


async def test_bytes_beyond_ascii_go_through_as_they_are():
    sent = "schön \u9375".encode()
    answered = (*JSON, ("x-more", "schön"))
    replicas = MadeUp([AnswerHead(200, answered), b"{}"])
    async with client(replicas) as door:
        headers = {b"X-Mine": sent, b"Content-Type": b"application/json"}
        answer = await door.post("/v1/completions", content=b"{}", headers=headers)
    assert dict(answer.headers.raw)[b"x-more"] == "schön".encode("latin-1")
    (asked,) = replicas.requests
    assert dict(asked.headers)["x-mine"].encode("latin-1") == sent
    replicas = MadeUp([AnswerHead(200, JSON), b"{}"])
    doors = FleetDoors(replicas, Limits(), lambda scope: Keys())
    told: list[Any] = []
    bodies = iter([{"type": "http.request", "body": b"{}"}])

    async def receive() -> Any:
        return next(bodies, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        told.append(message)

    scope = {**http_scope(), "query_string": b"a=\xff&b=1%20", "path": "/v1/sch\u00f6n?"}
    await doors(scope, receive, send)
    assert told[0]["status"] == 200
    assert replicas.requests[0].target == "/v1/sch%C3%B6n%3F?a=%FF&b=1%20"


@pytest.mark.parametrize("path", ["/ragcache/forget", "/ragcache/clear"])
async def test_only_an_operators_word_goes_to_all_replicas(keys: Keys, path: str):
    done = [AnswerHead(200, JSON), b"{}"]
    replicas = MadeUp(done, done)
    async with client(replicas, keys, key="the key of the shop") as door:
        answer = await door.post(path, json={"document_ids": ["a"]})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "OperatorsOnly")
    async with client(replicas) as door:
        assert (await door.post(path, json={"document_ids": ["a"]})).status_code == 403
    assert not replicas.requests
    async with client(replicas, keys, key="the operator's own key") as door:
        assert (await door.post(path, json={"document_ids": ["a"]})).status_code == 200
    assert len(replicas.requests) == 1


ILL, WELL = [AnswerHead(503, JSON), b"{}"], [AnswerHead(200, JSON), b""]


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize(
    ("attempts", "status"), [([], 503), ([ILL, ILL], 503), ([ILL, WELL], 200), ([WELL], 200)]
)
async def test_the_fleet_is_well_while_one_replica_is(
    keys: Keys, path: str, attempts: list[Any], status: int
):
    async with client(MadeUp(*attempts), keys) as door:
        assert (await door.get(path)).status_code == status


async def test_who_asks_for_its_health_again_and_again_asks_the_replicas_once():
    replicas = MadeUp(WELL)
    async with client(replicas) as door:
        answers = await asyncio.gather(*(door.get("/health") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(replicas.requests) == 1


async def test_a_server_that_fails_at_a_request_is_asked_three_times_and_heard():
    failed = [AnswerHead(500, JSON), b'{"error": "no"}']
    replicas = MadeUp(*[failed] * 5)
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json={"prompt": "p"})
    assert (answer.status_code, answer.json()) == (500, {"error": "no"})
    assert len(replicas.requests) == ingress.FAILED_ATTEMPTS


@pytest.mark.parametrize("status", [401, 500])
async def test_a_stream_that_no_replica_goes_on_with_ends_with_what_the_last_one_said(status: int):
    refused = [AnswerHead(status, JSON), b'{"error":\n {"message": "not you"}}']
    replicas = MadeUp(
        [AnswerHead(200, EVENTS), *stream(["one "]), ReplicaLost("killed")], *[refused] * 5
    )
    async with client(replicas) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert answer.status_code == 200  # the reader had it before
    *_, last = answer.text.split("data: ")
    assert json.loads(last) == {"error": {"message": "not you"}}
    assert "one " in answer.text


async def test_a_stream_that_is_drawn_gets_a_seed_and_no_other_does():
    whole = [AnswerHead(200, JSON), b"{}"]
    replicas = MadeUp(*[whole] * 4)
    async with client(replicas) as door:
        await door.post("/v1/completions", json={"prompt": "p", "stream": True})
        await door.post("/v1/completions", json=ASK)
        await door.post("/v1/completions", json={"prompt": "p", "stream": True, "seed": 7})
        await door.post("/ragcache/generate", json={"prompt": "p", "options": {"temperature": 1.0}})
    seen = [json.loads(request.body) for request in replicas.requests]
    assert isinstance(seen[0]["seed"], int)
    assert "seed" not in seen[1]
    assert seen[2]["seed"] == 7
    assert isinstance(seen[3]["options"]["seed"], int)


async def test_a_reader_who_leaves_ends_the_request_on_its_replica():
    replicas, has_begun = MadeUp(), asyncio.Event()

    async def for_ever() -> AsyncGenerator[AnswerHead | bytes, None]:
        try:
            yield AnswerHead(200, EVENTS)
            yield stream(WORDS)[0]
            has_begun.set()
            await asyncio.Event().wait()
        finally:
            replicas.ended += 1

    replicas.send = lambda request: for_ever()  # type: ignore[method-assign]
    doors = FleetDoors(replicas, Limits(), lambda scope: Keys())
    body = [{"type": "http.request", "body": json.dumps(ASK).encode()}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await has_begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    await doors(http_scope(), receive, send)
    assert replicas.ended == 1


def http_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [],
    }


async def test_keys_hold_at_the_door(keys: Keys):
    replicas = MadeUp([AnswerHead(200, JSON), b"{}"])
    async with client(replicas, keys) as door:
        assert (await door.post("/v1/completions", json=ASK)).status_code == 401
        assert (await door.get("/health")).status_code == 200
    async with client(replicas, keys, key="the key of the shop") as door:
        assert (await door.get("/metrics")).status_code == 403
        await door.post("/v1/completions", json=ASK)
    sent = replicas.requests[-1]
    assert dict(sent.headers)["authorization"] == "Bearer the key of the shop"
    assert sent.path != read_without_tenant()


def read_without_tenant() -> Any:
    from ragcache_engine.fleet_serving.request_paths import read_routable

    return read_routable(ASK, None).path


async def test_more_than_the_fleet_takes_is_refused_with_429():
    async with client(MadeUp([FleetBusy("full")])) as door:
        answer = await door.post("/v1/completions", json=ASK)
    assert answer.status_code == 429
    assert answer.json()["error"]["kind"] == "ServerBusy"
    assert answer.headers["retry-after"] == "1"
    hanging: Callable[..., Any] = asyncio.Event().wait
    replicas = MadeUp()

    async def hang(request: FleetRequest) -> AsyncGenerator[AnswerHead | bytes, None]:
        await hanging()
        yield b""

    replicas.send = hang  # type: ignore[method-assign]
    async with client(replicas, limits=Limits(requests=1)) as door:
        waiting = asyncio.ensure_future(door.post("/v1/completions", json=ASK))
        await asyncio.sleep(0.01)
        assert (await door.post("/v1/completions", json=ASK)).status_code == 429
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_every_answer_of_a_request_needs_room_in_the_fleet():
    async with client(MadeUp(), limits=Limits(requests=8)) as door:
        answer = await door.post("/v1/completions", json={"prompt": ["why?"] * 60})
    assert answer.status_code == 413


async def test_a_body_that_is_too_large_is_refused():
    async with client(MadeUp(), limits=Limits(body_bytes=10)) as door:
        assert (await door.post("/v1/completions", json=ASK)).status_code == 413


async def test_to_forget_is_for_all_replicas(keys: Keys):
    done = [AnswerHead(200, JSON), b"{}"]
    operator = "the operator's own key"
    async with client(MadeUp(done, done), keys, key=operator) as door:
        assert (await door.post("/ragcache/forget", json={"document_ids": ["a"]})).json() == {}
    refused = [AnswerHead(403, JSON), b'{"error": {"kind": "OperatorsOnly"}}']
    async with client(MadeUp(done, refused), keys, key=operator) as door:
        assert (
            await door.post("/ragcache/forget", json={"document_ids": ["a"]})
        ).status_code == 403
    half = (
        [AnswerHead(200, JSON), b'{"cleared": false}'],
        [AnswerHead(200, JSON), b'{"cleared": true}'],
    )
    async with client(MadeUp(*half), keys, key=operator) as door:
        assert (await door.post("/ragcache/clear", json={})).json() == {"cleared": False}


def page(value: int) -> list[AnswerHead | bytes | Exception]:
    text = f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {value}\n"
    return [AnswerHead(200, (("content-type", "text/plain"),)), text.encode()]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_the_metrics_are_those_of_all_replicas_that_answer(path: str):
    replicas = MadeUp(page(1), [AnswerHead(503, ()), b""], page(3))
    async with client(replicas, key="any") as door:
        answer = await door.get(path, headers={"Accept": "application/openmetrics-text"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'vllm:num_requests_running{replica="r0"} 1.0' in answer.text
    assert 'vllm:num_requests_running{replica="r2"} 3.0' in answer.text
    assert "r1" not in answer.text
    (asked,) = replicas.requests
    assert asked.headers == (("authorization", "Bearer any"), ("accept", "text/plain"))


async def test_metrics_that_every_replica_refuses_are_refused():
    replicas = MadeUp(*[[AnswerHead(401, JSON), b'{"error": "no key"}']] * 2)
    async with client(replicas) as door:
        answer = await door.get("/metrics")
    assert (answer.status_code, answer.json()) == (401, {"error": "no key"})


async def test_metrics_of_a_fleet_that_does_not_answer_are_an_error(keys: Keys):
    async with client(MadeUp()) as door:
        assert (await door.get("/metrics")).status_code == 500
    async with client(MadeUp(page(1)), keys, key="the operator's own key") as door:
        assert (await door.get("/metrics")).status_code == 200


async def test_a_fleet_takes_no_documents_of_clients_and_says_what_to_do(keys: Keys):
    replicas = MadeUp()
    async with client(replicas, keys, key=OPERATOR) as fleet:
        lines = {"Content-Type": "application/x-ndjson"}
        pushed = await fleet.put("/ragcache/corpora/sea", content=b"{}", headers=lines)
        removed = await fleet.delete("/ragcache/corpora/sea")
    assert [pushed.status_code, removed.status_code] == [400, 400]
    assert "--corpus" in pushed.json()["error"]["message"]
    assert replicas.requests == []


async def test_a_conversation_is_routed_by_the_documents_that_the_fleet_knows(keys: Keys):
    text = "Rivers carry salt into the sea, and the sun takes the water away again."
    corpora = Corpora()
    corpora.put(None, "sea", Registered("salt", text))
    replicas = MadeUp([AnswerHead(200, JSON), b"{}"])
    async with client(replicas, keys, key=SHOP, corpora=corpora) as fleet:
        body = {"messages": [{"role": "user", "content": f"{text}\nWhy?"}]}
        await fleet.post("/v1/chat/completions", json=body)
    assert [name for _, name in replicas.requests[0].documents] == ["sea/salt"]
