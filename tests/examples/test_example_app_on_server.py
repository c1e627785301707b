"""The web app of examples/: in a process of its own on a real server, and here on one without a model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
QUESTION = "What does the with statement do with a context manager?"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def app(ragcache_server: Any, tmp_path: Path) -> Iterator[str]:
    """The address of the app, which has a tenant's key."""
    for module in ("fastapi", "faiss", "langchain_core", "sentence_transformers"):
        pytest.importorskip(module)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, EXAMPLES / "app_on_server.py", ragcache_server.url]
    environment = {
        **os.environ,
        "RAGCACHE_API_KEY": "the key of the shop",
        "PYTHONPATH": str(EXAMPLES.parent),
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=written, stderr=written, env=environment
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                httpx2.get(f"{url}/stats", timeout=5)
                break
            except httpx2.TransportError:
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def ask(app: str, question: str) -> list[str]:
    """The pieces of an answer as they come."""
    with httpx2.stream("GET", f"{app}/stream", params={"question": question}, timeout=120) as said:
        assert said.status_code == 200
        return list(said.iter_text())


@pytest.mark.vllm
def test_the_app_streams_answers_and_the_second_asking_finds_the_documents_cached(app: str):
    first = ask(app, QUESTION)
    cold = httpx2.get(f"{app}/stats").json()
    again = ask(app, QUESTION)
    warm = httpx2.get(f"{app}/stats").json()
    assert "".join(again) == "".join(first) != ""
    assert len(first) > 3
    assert warm["finished"] == 2
    prompt_tokens = warm["prompt_tokens"] - cold["prompt_tokens"]
    assert warm["cached_tokens"] - cold["cached_tokens"] > 0.8 * prompt_tokens


def test_the_app_works_on_a_server_without_a_model_and_says_so_when_it_is_gone():
    for module in ("fastapi", "faiss", "langchain_core"):
        pytest.importorskip(module)
    from example_app import example_app
    from http_servers import OPERATOR, serve

    from ragcache_engine.backends.memory import MemoryBackend

    with serve(MemoryBackend()) as server, example_app(server.url, OPERATOR) as app:
        assert app.asking_again_finds_the_documents()
        server.stop()
        assert app.status(QUESTION) == 503
