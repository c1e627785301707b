"""Commands reach a server with the operator's key, or with another one that the user names."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ragcache_cli.errors import CommandError
from ragcache_cli.server_access import observer_of

heard: list[str | None] = []


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        heard.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ragcache_running 0\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    heard.clear()
    with HTTPServer(("127.0.0.1", 0), Metrics) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def asked(url: str, api_key_env: str | None = None) -> list[str | None]:
    observer_of(argparse.Namespace(url=url, api_key_env=api_key_env)).observe(with_tree=False)
    return heard


def test_the_operators_key_opens_the_metrics(server: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", "the operator's")
    assert asked(server) == ["Bearer the operator's"]


def test_a_key_that_the_user_names_goes_before(server: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", "the operator's")
    monkeypatch.setenv("OTHER_KEY", "another one")
    assert asked(server, "OTHER_KEY") == ["Bearer another one"]


def test_without_keys_none_is_sent(server: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAGCACHE_OPERATOR_KEY", raising=False)
    assert asked(server) == [None]


def test_a_named_key_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTHER_KEY", raising=False)
    with pytest.raises(CommandError, match="OTHER_KEY is not set"):
        asked("http://localhost:1", "OTHER_KEY")
