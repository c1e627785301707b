"""What a server reads before it knows whose request it is: not too much, and not for ever."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import pytest
from http_servers import MemoryServer, serve

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.serving.bounded_http import LARGEST_HEAD_BYTES, BoundedHTTP

ENOUGH = 4 * LARGEST_HEAD_BYTES
HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with serve(MemoryBackend()) as server:
        yield server


@pytest.fixture
def hasty_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryServer]:
    """A server that waits a tenth of a second."""
    monkeypatch.setattr(BoundedHTTP, "head_s", 0.1)
    monkeypatch.setattr(BoundedHTTP, "body_s", 0.1)
    with serve(MemoryBackend()) as server:
        yield server


@contextmanager
def connection(server: MemoryServer) -> Iterator[socket.socket]:
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=20) as made:
        yield made


def answer_of(connected: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    try:
        while part := connected.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:  # it closed with bytes unread
        pass
    return b"".join(parts)


def send_all(connected: socket.socket, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the server has seen enough
        connected.sendall(data)


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * ENOUGH,
        HEAD + b"A: " + b"a" * ENOUGH,
        HEAD + b"A: a\r\n" * (ENOUGH // 6),
        HEAD + b"a" * ENOUGH,
        CHUNKED + b"1;" + b"a" * ENOUGH,
        CHUNKED + b"0\r\nA: " + b"a" * ENOUGH,
    ],
    ids=["path", "value", "headers", "name", "chunk extension", "trailer"],
)
def test_what_does_not_end_is_refused(server: MemoryServer, endless: bytes):
    with connection(server) as connected:
        send_all(connected, endless)
        assert answer_of(connected)[:12] in (b"HTTP/1.1 400", b"")
        assert not server.seen
        assert httpx2.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /hea",
        HEAD,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{",
    ],
    ids=["nothing", "a first line", "a head", "a body"],
)
def test_whoever_does_not_go_on_is_hung_up_on(hasty_server: MemoryServer, begun: bytes):
    with connection(hasty_server) as connected:
        connected.sendall(begun)
        assert answer_of(connected) == b""


def test_sending_now_and_then_wins_no_time(hasty_server: MemoryServer):
    with connection(hasty_server) as connected:
        connected.settimeout(0.01)
        for _ in range(1000):
            send_all(connected, b"A: a\r\n" if _ else HEAD)
            try:
                assert connected.recv(1) == b""
                return
            except TimeoutError:
                continue
            except ConnectionResetError:
                return
    pytest.fail("the server went on reading")


def test_a_second_request_has_its_time_too(hasty_server: MemoryServer):
    with connection(hasty_server) as connected:
        connected.sendall(HEAD + b"\r\n")
        answer = b""
        while not answer.endswith(b'{"path":"/health"}'):
            answer += connected.recv(1 << 16)
        connected.sendall(b"GET /hea")
        assert answer_of(connected) == b""


def test_an_answer_may_take_longer_than_its_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoundedHTTP, "head_s", 0.1)
    monkeypatch.setattr(BoundedHTTP, "body_s", 0.1)

    def think(prompt: str) -> str:
        time.sleep(0.3)
        return "Because"

    body = {"prompt": "Why?", "request": "r"}
    with serve(MemoryBackend(think)) as server, httpx2.Client(base_url=server.url) as client:
        for _ in range(2):  # on one connection
            assert "Because" in client.post("/ragcache/generate", json=body).text
