"""`ragcache dashboard` tells on the terminal what its page shows: also that nothing can be seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("dash")

from http_servers import serve
from prometheus_client import CollectorRegistry, start_http_server

from ragcache_cli.main import main
from ragcache_engine import RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.dashboard.serving import Dashboard

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def dashboard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs the command, ends it as soon as it waits, and returns what it said."""
    monkeypatch.setattr(Dashboard, "wait", lambda self: None)
    monkeypatch.delenv("RAGCACHE_OPERATOR_KEY", raising=False)

    def run(*arguments: str) -> str:
        assert main(["dashboard", "--port", "0", *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    return run


def test_an_address_where_nobody_answers_is_named(dashboard: Callable[..., str]):
    said = dashboard(NOBODY)
    assert "The dashboard is at http://127.0.0.1:" in said
    assert f"{NOBODY}/metrics cannot be read: " in said
    assert "The page goes on asking" in said


def test_a_server_that_wants_a_key_says_how_to_give_it(
    dashboard: Callable[..., str], tmp_path: Path
):
    keys = tmp_path / "keys"
    keys.write_text('[tenants]\nshop = ["the key of the shop"]\n')
    with serve(MemoryBackend(), keys_file=keys) as server:
        said = dashboard(server.url)
    assert "cannot be read: it wants a key: --api-key-env" in said


def test_a_server_that_answers_is_not_complained_of(
    dashboard: Callable[..., str], memory_engine: RAGCacheEngine
):
    registry = CollectorRegistry()
    registry.register(memory_engine.collector())
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        said = dashboard(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "cannot be read" not in said


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_cannot_be_is_an_error(
    dashboard: Callable[..., str], capsys: pytest.CaptureFixture[str], port: str
):
    assert main(["dashboard", NOBODY, "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
