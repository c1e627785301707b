"""What goes wrong between a client and a server: named errors, and a second try only where it is safe."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import http_servers
import pytest
from http_servers import OPERATOR, serve
from waiting import eventually

from ragcache_engine import (
    ConfigError,
    Document,
    EmptyPrompt,
    EngineClosed,
    EngineDied,
    GenerationFailed,
    Guide,
    InvalidArgument,
    KeyRefused,
    ModelNotFound,
    OperatorsOnly,
    PromptTooLong,
    RAGCacheEngine,
    RequestTooLarge,
    SamplingOptions,
    ServerBusy,
    ServerLost,
    ServerUnreachable,
    UnsupportedGuide,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.backends.server import connection
from ragcache_engine.serving.settings import Limits

ENDLESS = SamplingOptions(max_tokens=None)


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_WAITS_S", (0.01, 0.01))


def stalled(after: int) -> MemoryBackend:
    def stall(step: int) -> None:
        if step >= after:
            raise Stall

    return MemoryBackend(lambda prompt: "and on " * 4000, fault=stall)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_address_where_nobody_answers_is_named():
    with pytest.raises(ServerUnreachable, match="is the server started"):
        RAGCacheEngine.connect(f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("url", ["host:8000", "ftp://host", "http://[::1"])
def test_an_impossible_address_is_named_and_a_right_one_shown(url: str):
    with pytest.raises(InvalidArgument):
        RAGCacheEngine.connect(url)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (200, "<html>Welcome</html>"),
        (404, "<html>Not found</html>"),
        (404, '{"detail": "Not Found"}'),
    ],
)
def test_another_kind_of_server_is_not_taken_for_ours(status: int, text: str):
    server = answering(lambda path: (status, text))
    with server as (url, _), pytest.raises(ServerUnreachable, match="no vLLM server"):
        RAGCacheEngine.connect(url)


def test_a_server_of_openais_api_that_is_not_vllm_is_not_taken_for_it():
    def answer(path: str) -> tuple[int, str]:
        return (200, '{"data": [{"id": "other"}]}') if path == "/v1/models" else (404, "{}")

    server = answering(answer)
    with server as (url, _), pytest.raises(ServerUnreachable, match="no vLLM server"):
        RAGCacheEngine.connect(url)


def test_a_server_of_another_version_is_named():
    server = answering(lambda path: (200, '{"protocol": 99}'))
    with (
        server as (url, _),
        pytest.raises(ConfigError, match="speaks protocol 99, and this client 1"),
    ):
        RAGCacheEngine.connect(url)


def test_a_wrong_key_is_refused(tmp_path: Path):
    (tmp_path / "keys").write_text('[tenants]\nshop = ["the key of the shop"]\n')
    with serve(MemoryBackend(), keys_file=tmp_path / "keys") as server:
        with pytest.raises(KeyRefused, match="no such key"):
            RAGCacheEngine.connect(server.url, api_key="the key of nobody")
        with pytest.raises(KeyRefused, match="wants a key"):
            RAGCacheEngine.connect(server.url)


@pytest.mark.parametrize("key", ["two\nlines of a key", "a key\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str):
    with pytest.raises(InvalidArgument, match="API key") as caught:
        RAGCacheEngine.connect("http://localhost:1", api_key=key)
    assert key not in str(caught.value)


def test_the_key_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "keys").write_text('[tenants]\nshop = ["the key of the shop"]\n')
    monkeypatch.setenv("RAGCACHE_API_KEY", "the key of the shop\n")
    serving = serve(MemoryBackend(), keys_file=tmp_path / "keys")
    with serving as server, RAGCacheEngine.connect(server.url) as engine:
        assert engine.generate("Why?").text == "You asked: Why?"
        assert "the shop" not in repr(engine.config)


def test_a_model_that_the_server_does_not_serve_is_named():
    with serve(MemoryBackend()) as server:
        with pytest.raises(ModelNotFound, match="serves any, not 'other'"):
            RAGCacheEngine.connect(server.url, model="other")
        with RAGCacheEngine.connect(server.url, model="any") as engine:
            assert engine.config.model == "any"


def test_settings_of_the_server_are_no_settings_of_a_client():
    with pytest.raises(ValueError, match="device_cache: settings of the server"):
        RAGCacheEngine.connect("http://localhost:1", device_cache="1GiB")


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("", None, EmptyPrompt),
        ("word " * 9000, None, PromptTooLong),
        ("Why?", SamplingOptions(guide=Guide.regex("[0-9]+")), UnsupportedGuide),
    ],
)
def test_a_bad_request_raises_at_the_call_and_not_at_the_first_piece(
    served_engine: RAGCacheEngine, prompt: str, options: SamplingOptions | None, error: type
):
    with pytest.raises(error):
        served_engine.stream(prompt, options=options)
    with pytest.raises(error):
        asyncio.run(served_engine.agenerate(prompt, options=options))
    assert served_engine.generate("And now?").text == "You asked: And now?"


def test_more_bytes_than_the_server_takes_are_refused_by_name():
    serving = serve(MemoryBackend(), limits=Limits(body_bytes=2000))
    with serving as server, RAGCacheEngine.connect(server.url) as engine:
        with pytest.raises(RequestTooLarge, match=r"2,000 bytes.*--max-body"):
            engine.generate("word " * 1000)
        assert engine.generate("Why?").text == "You asked: Why?"


@pytest.mark.slow
def test_a_server_that_is_full_says_so_and_takes_the_next_one_when_there_is_room():
    is_free = threading.Event()

    def stall(step: int) -> None:
        if step > 4 and not is_free.is_set():
            raise Stall

    backend = MemoryBackend(lambda prompt: "and on " * 4000, fault=stall)
    serving = serve(backend, limits=Limits(requests=1))
    with serving as server, RAGCacheEngine.connect(server.url) as engine:
        with engine.stream("Count.", options=ENDLESS) as pieces:
            next(pieces)
            with pytest.raises(ServerBusy, match="--max-requests"):
                engine.generate("Me too?")
        is_free.set()
        assert eventually(lambda: backend.running == 0)
        assert engine.generate("Now?", options=SamplingOptions(max_tokens=2)).text == "and on"


@pytest.mark.parametrize("way", ["close", "drop", "cancel"])
def test_leaving_an_answer_frees_the_request_on_the_server(way: str):
    backend = stalled(after=4)
    with serve(backend) as server, RAGCacheEngine.connect(server.url) as engine:

        async def cancel() -> None:
            task = asyncio.create_task(engine.agenerate("Count.", options=ENDLESS))
            while not backend.running:
                await asyncio.sleep(0.001)
            task.cancel()

        if way == "cancel":
            asyncio.run(cancel())
        else:
            pieces = engine.stream("Count.", options=ENDLESS)
            next(pieces)
            assert backend.running == 1
            if way == "close":
                pieces.close()
            del pieces
        assert eventually(lambda: backend.running == 0)
        assert backend.aborted == 1
        assert eventually(lambda: engine.stats().cancelled == 1)


def test_closing_the_engine_ends_its_requests_and_not_the_server():
    backend = stalled(after=4)
    with serve(backend) as server:
        engine = RAGCacheEngine.connect(server.url)
        pieces = engine.stream("Count.", options=ENDLESS)
        next(pieces)
        engine.close()
        with pytest.raises(EngineClosed):
            list(pieces)
        assert eventually(lambda: backend.running == 0)
        with RAGCacheEngine.connect(server.url) as other:
            assert other.limits == engine.limits


def test_a_server_that_dies_in_mid_answer_is_named_and_nothing_is_asked_twice():
    backend = stalled(after=6)
    with serve(backend) as server, RAGCacheEngine.connect(server.url) as engine:
        pieces = engine.stream("Count.", options=ENDLESS)
        next(pieces)
        server.stop()
        with pytest.raises(ServerLost, match="middle of an answer"):
            list(pieces)
        with pytest.raises(ServerUnreachable):
            engine.generate("Still there?")
        assert engine.stats().failed == 2
        assert engine.stats().retried == 0


def test_a_model_that_dies_under_the_server_is_no_death_of_the_client():
    def die(step: int) -> None:
        if step == 5:
            raise EngineDied("out of memory")

    serving = serve(MemoryBackend(lambda p: "and on " * 400, fault=die))
    with serving as server, RAGCacheEngine.connect(server.url) as engine:
        with pytest.raises(ServerLost, match="out of memory"):
            engine.generate("Count.", options=ENDLESS)
        assert not engine.closed


def test_a_request_that_the_server_fails_before_its_first_token_is_asked_once_more():
    def fail(step: int) -> None:
        if step == 0:
            raise GenerationFailed("this one failed")

    with serve(MemoryBackend(fault=fail)) as server, RAGCacheEngine.connect(server.url) as engine:
        assert engine.generate("Why?").text == "You asked: Why?"
        assert engine.stats().retried == 1


def test_an_engine_finds_its_server_again_after_the_server_was_started_anew():
    port, backend = free_port(), MemoryBackend()
    with http_servers.serve(backend, port=port) as server:
        engine = RAGCacheEngine.connect(server.url)
        assert engine.generate("Why?").text == "You asked: Why?"
    with engine:
        with pytest.raises(ServerUnreachable):
            engine.generate("Gone?")
        with http_servers.serve(MemoryBackend(), port=port):
            assert engine.generate("Back?").text == "You asked: Back?"


@pytest.mark.slow
def test_only_operators_forget_clear_and_see_the_counters():
    tides = Document("tides", "They follow the moon. " * 20)
    with serve(MemoryBackend()) as server:
        with RAGCacheEngine.connect(server.url) as anybody:
            with pytest.raises(OperatorsOnly, match="operator's key"):
                anybody.forget(["tides"])
            with pytest.raises(OperatorsOnly):
                anybody.clear_cache()
            anybody.generate(tides.text, [tides])
            assert anybody.stats().finished == 1
            assert anybody.stats().tiers.ended == 0
        with RAGCacheEngine.connect(server.url, api_key=OPERATOR) as operator:
            assert operator.generate(tides.text, [tides]).usage.cached.total > 0
            assert operator.stats().tiers.ended == 2
            operator.forget(["tides"])
            assert operator.generate(tides.text, [tides]).usage.cached.total == 0


def test_busy_answers_of_a_proxy_are_tried_again_and_then_named():
    with answering(lambda path: (503, "overloaded")) as (url, asked):
        with pytest.raises(ServerBusy, match="overloaded"):
            RAGCacheEngine.connect(url)
        assert len(asked) == 3


@contextmanager
def answering(answer: Callable[[str], tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers; yields its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            status, text = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
