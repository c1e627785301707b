"""`ragcache serve` only assembles the arguments of vLLM's server; here they are read, and used."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ragcache_cli.main import main

pytestmark = pytest.mark.vllm


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["serve", *arguments]) == 0
    return shlex.split(capsys.readouterr().out)


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_tiers_travel_in_vllms_own_arguments(
    demo_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sizes = ("--host-cache", "100MiB", "--disk-cache", "1GiB", "--disk-cache-dir", str(tmp_path))
    words = shown(capsys, demo_model, *sizes, "--policy", "pgdsf", "--show")
    assert words[1:5] == ["-m", "vllm.entrypoints.openai.api_server", "--model", demo_model]
    assert after(words, "--scheduler-cls").endswith("TierScheduler")
    transfer = json.loads(after(words, "--kv-transfer-config"))
    assert transfer["kv_connector"] == "TierConnector"
    settings = transfer["kv_connector_extra_config"]["ragcache"]
    assert settings["policy"] == "pgdsf"
    assert settings["host_bytes"] == 100 << 20
    assert settings["disk_bytes"] == 1 << 30
    assert settings["disk_folder"] == str(tmp_path)


def test_what_stands_behind_the_double_dash_wins(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    words = shown(capsys, demo_model, "--show", "--", "--block-size", "64", "--port", "8123")
    assert words.count("--block-size") == 1
    assert after(words, "--block-size") == "64"
    assert after(words, "--port") == "8123"


def test_a_disk_without_a_host_is_refused_by_name(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", demo_model, "--host-cache", "0", "--disk-cache", "1GiB", "--show"]) == 1
    assert "a disk cache needs a host cache" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_the_server_answers_and_tells_where_tokens_came_from(
    demo_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    small = ("--port", str(port), "--host", "127.0.0.1", "--max-model-len", "1024")
    words = shown(
        capsys,
        demo_model,
        *("--host-cache", "64MiB", "--show", "--", *small, "--kv-cache-memory-bytes", "60000000"),
    )
    memory_before = set(Path("/dev/shm").glob("vllm_offload_*"))
    log = tmp_path / "log"
    with open(log, "wb") as written:
        server = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, log)
        tokens = [number % 20_000 + 100 for number in range(200)]
        asked = {
            "model": demo_model,
            "prompt": tokens,
            "max_tokens": 2,
            "temperature": 0,
            "kv_transfer_params": {"ragcache": {"segments": [[64, None], [190, "d1"]]}},
        }
        first, second = (ask(port, asked) for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        told = second["kv_transfer_params"]["ragcache"]["tokens"]
        assert told["device"] > 0
        metrics = fetch(f"http://127.0.0.1:{port}/metrics").decode()
        assert "ragcache:prompt_tokens_total{" in metrics
        malformed = asked | {"kv_transfer_params": {"ragcache": {"segments": "all of it"}}}
        assert ask(port, malformed)["choices"]
    finally:
        server.terminate()
        server.wait(60)
    # vLLM's server kills its processes without waiting for their end.
    assert set(Path("/dev/shm").glob("vllm_offload_*")) <= memory_before


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        if server.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-3000:]}")
        try:
            fetch(url)
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail(f"the server did not come up: {log.read_text()[-3000:]}")


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        content: bytes = answer.read()
    return content
