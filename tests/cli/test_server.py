"""`ragcache serve` only assembles the arguments of vLLM's server; here they are read, and used."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest

from ragcache_cli import logging_setup
from ragcache_cli.main import main
from ragcache_engine.dashboard import Observation, ServerObserver
from ragcache_engine.dashboard.tree_memory import BUSY_LOOK_S
from ragcache_engine.serving.keys import name_by_digest

pytestmark = pytest.mark.vllm

KEY = "the operator's own key"


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


def test_several_workers_stay_with_vllm_however_they_are_spelled(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    for name in ("--tensor-parallel-size", "--tensor_parallel_size"):
        words = shown(capsys, demo_model, "--show", "--", name, "2")
        assert "--distributed-executor-backend" not in words


def test_the_cache_on_a_cpu_takes_a_part_of_what_is_free_unless_a_size_is_given(
    demo_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    size = int(after(shown(capsys, demo_model, "--show"), "--kv-cache-memory-bytes"))
    assert 0 < size <= psutil.virtual_memory().total // 4
    for given in (("--kv_cache_memory_bytes", "60000000"), ("--gpu-memory-utilization=0.3",)):
        words = shown(capsys, demo_model, "--show", "--", *given)
        assert "--kv-cache-memory-bytes" not in words
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert "--kv-cache-memory-bytes" not in shown(capsys, demo_model, "--show")


def test_a_server_writes_its_log_on_the_terminal(
    demo_model: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    for name in (logging_setup.CHOSEN, *logging_setup.QUIET):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", KEY)

    def become(_: str, command: list[str]) -> None:
        os.write(2, b"the server speaks\n")
        assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
        assert not logging_setup.KEPT_FROM_SERVERS & os.environ.keys()
        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
        assert KEY not in str(os.environ)
        assert os.environ["RAGCACHE_OPERATOR_KEY"] == name_by_digest(KEY)

    monkeypatch.setattr(os, "execv", become)
    assert main(["serve", demo_model]) == 0
    assert "the server speaks" in capfd.readouterr().err


def test_address_and_port_are_vllms_too(demo_model: str, capsys: pytest.CaptureFixture[str]):
    words = shown(capsys, demo_model, "--host", "::1", "--port", "8123", "--show")
    assert (after(words, "--host"), after(words, "--port")) == ("::1", "8123")
    words = shown(capsys, demo_model, "--port", "8123", "--show", "--", "--port=8200")
    assert "--port=8200" in words
    assert "--port" not in words


@pytest.mark.parametrize(
    "given",
    [
        ("--routing", "random"),
        ("--max-replicas", "3"),
        ("--doors", "2"),
        ("--gpus", "1"),
        ("--address", "auto"),
    ],
)
def test_what_only_a_fleet_has_is_refused_for_one_server(
    demo_model: str, capsys: pytest.CaptureFixture[str], given: tuple[str, str]
):
    assert main(["serve", demo_model, *given, "--show"]) == 1
    assert f"{given[0]} is for a fleet: say how many --replicas" in capsys.readouterr().err


def test_what_stands_behind_the_double_dash_wins(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    words = shown(capsys, demo_model, "--show", "--", "--block-size", "64", "--port", "8123")
    assert words.count("--block-size") == 1
    assert after(words, "--block-size") == "64"
    assert after(words, "--port") == "8123"


def test_keys_and_limits_travel_in_the_environment(
    demo_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    keys = tmp_path / "keys.toml"
    keys.write_text('[tenants]\nshop = ["the key of the shop"]\n')
    limits = ("--max-body", "1MiB", "--max-requests", "9", "--max-corpora", "2MiB")
    limits += ("--learn-documents",)
    words = shown(capsys, demo_model, "--keys", str(keys), *limits, "--show")
    assert words[:6] == [
        "env",
        f"RAGCACHE_KEYS={keys}",
        "RAGCACHE_MAX_BODY=1048576",
        "RAGCACHE_MAX_REQUESTS=9",
        "RAGCACHE_MAX_CORPORA=2097152",
        "RAGCACHE_LEARN_DOCUMENTS=1",
    ]
    assert "the key of the shop" not in " ".join(words)


EMBEDDING = ("--embeddings", "http://host:8001/v1")


def test_what_embeds_documents_travels_there_too(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    given = ("--reuse", "anywhere", *EMBEDDING, "--embeddings-model", "small")
    words = shown(capsys, demo_model, *given, "--show")
    assert words[:3] == [
        "env",
        "RAGCACHE_EMBEDDINGS=http://host:8001/v1",
        "RAGCACHE_EMBEDDINGS_MODEL=small",
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (EMBEDDING, "give it with --reuse anywhere"),
        (("--reuse", "anywhere", *EMBEDDING), "name the model that"),
        (("--reuse", "anywhere", "--embeddings", "large"), 'an embedding model is "minilm"'),
        (("--embeddings-model", "small"), "say which, by --embeddings"),
    ],
)
def test_what_cannot_embed_is_refused_before_anything_starts(
    demo_model: str, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], why: str
):
    assert main(["serve", demo_model, *given, "--show"]) == 1
    assert why in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("[tenants]\nshop = ['short']", (), "fewer than 16 characters"),
        ("[tenants]\nshop = ['the key of the shop']", ("--", "--api-key", "x"), "--api-key"),
    ],
)
def test_keys_that_cannot_work_are_refused_before_anything_starts(
    demo_model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    given: tuple[str, ...],
    why: str,
):
    (tmp_path / "keys.toml").write_text(text)
    keys = str(tmp_path / "keys.toml")
    assert main(["serve", demo_model, "--keys", keys, "--show", *given]) == 1
    assert why in capsys.readouterr().err


def test_the_operators_key_stands_in_no_process_list(
    demo_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", KEY)
    words = shown(capsys, demo_model, "--show")
    assert KEY not in " ".join(words)
    assert sha256(KEY.encode()).hexdigest() not in " ".join(words)
    assert after(words, "--middleware").endswith("ServerDoors")


def test_a_short_operators_key_is_refused_before_anything_starts(
    demo_model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", "x")
    assert main(["serve", demo_model]) == 1
    assert "RAGCACHE_OPERATOR_KEY has fewer than 16 characters" in capsys.readouterr().err


def test_a_disk_without_a_host_is_refused_by_name(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", demo_model, "--host-cache", "0", "--disk-cache", "1GiB", "--show"]) == 1
    assert "a disk cache needs a host cache" in capsys.readouterr().err


class SteppedClock:
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def server_port(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real server that `ragcache serve` started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    small = ("--port", str(port), "--host", "127.0.0.1", "--max-model-len", "1024")
    words = [sys.executable, "-m", "ragcache_cli", "serve", demo_model, "--host-cache", "64MiB"]
    words += ["--", *small, "--kv-cache-memory-bytes", "60000000", "--enable-log-requests"]
    memory_before = set(Path("/dev/shm").glob("vllm_offload_*"))
    log = tmp_path_factory.mktemp("server") / "log"
    with open(log, "wb") as written:
        environment = os.environ | {"RAGCACHE_OPERATOR_KEY": KEY, "VLLM_LOGGING_LEVEL": "INFO"}
        server = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield port
        require_hidden_key(server, log)
    finally:
        server.terminate()
        server.wait(60)
    # vLLM's server kills its processes without waiting for their end.
    assert set(Path("/dev/shm").glob("vllm_offload_*")) <= memory_before


def asked_of(demo_model: str) -> dict[str, Any]:
    return {
        "model": demo_model,
        "prompt": [number % 20_000 + 100 for number in range(200)],
        "max_tokens": 2,
        "temperature": 0,
        "kv_transfer_params": {"ragcache": {"segments": [[64, None], [190, "d1"]]}},
    }


def test_a_head_without_an_end_is_refused(server_port: int):
    with socket.create_connection(("127.0.0.1", server_port), timeout=60) as endless:
        with suppress(ConnectionError):
            for _ in range(100):
                endless.sendall(b"GET /health HTTP/1.1\r\nA: " + b"a" * (1 << 20))
        with suppress(ConnectionResetError):
            assert b"HTTP/1.1 400" in endless.recv(1 << 16)
    assert fetch(f"http://127.0.0.1:{server_port}/health") == b""


@pytest.mark.timeout(300)
def test_the_server_answers_and_tells_where_tokens_came_from(demo_model: str, server_port: int):
    asked = asked_of(demo_model)
    first, second = (ask(server_port, asked) for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    told = second["kv_transfer_params"]["ragcache"]["tokens"]
    assert told["device"] > 0
    metrics = fetch(f"http://127.0.0.1:{server_port}/metrics").decode()
    assert "ragcache_prompt_tokens_total{" in metrics
    malformed = asked | {"kv_transfer_params": {"ragcache": {"segments": "all of it"}}}
    with pytest.raises(HTTPError) as refused:
        ask(server_port, malformed)
    assert refused.value.code == 400
    assert "segments" in refused.value.read().decode()


def test_promtool_finds_nothing_to_complain_about(demo_model: str, server_port: int):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    ask(server_port, asked_of(demo_model))
    require_conventions(fetch(f"http://127.0.0.1:{server_port}/metrics").decode())


def test_a_real_prometheus_scrapes_the_server(
    demo_model: str, server_port: int, shipped: Path, prometheus_on: Any
):
    for _ in range(2):
        ask(server_port, asked_of(demo_model))
    with prometheus_on(server_port, shipped / "ragcache-rules.yml") as watch:
        assert watch.wait_for('sum(ragcache_prompt_tokens_total{source="device"}) > 0')
        assert watch.wait_for('ragcache_disk_state{state="none"} == 1')
        assert watch.wait_for('ragcache_held_blocks{tier="device"} > 0')
        assert watch.wait_for('vllm:num_requests_waiting{job="ragcache"}')


def test_an_observer_with_the_operators_key_sees_documents_and_requests(
    demo_model: str, server_port: int
):
    ask(server_port, asked_of(demo_model))
    observer = ServerObserver(f"http://127.0.0.1:{server_port}", KEY)
    before = observer.observe(with_tree=True)
    seen = observer.observe(with_tree=True)
    assert seen.problem == ""
    assert seen.tree is not None
    (document,) = seen.tree.documents
    assert document.documents == ("d1",)
    assert document.blocks["device"] > 0
    assert seen.counters.held["device"] > 0
    last = seen.requests[-1]
    assert [each.document_id for each in last.documents] == ["d1"]
    assert last.documents[0].tokens == 126
    assert [phase.kind for phase in last.phases] == ["wait", "prefill", "answer"]
    assert 0 < last.ttft_s <= last.total_s
    # To look is neither a request nor a use.
    assert seen.counters.computed_tokens == before.counters.computed_tokens
    assert len(seen.requests) == len(before.requests)


def test_an_observer_leaves_an_idle_server_in_peace(demo_model: str, server_port: int):
    clock = SteppedClock()
    observer = ServerObserver(f"http://127.0.0.1:{server_port}", KEY, now=clock)

    def look() -> Observation:
        clock.seconds += BUSY_LOOK_S
        return observer.observe(with_tree=True)

    ask(server_port, asked_of(demo_model))
    looks = [look() for _ in range(5)]
    assert all(seen.tree for seen in looks)
    # A look is a request of vLLM's. The first one makes the server report the requests before it.
    assert looks[-1].finished == looks[-2].finished == looks[-3].finished
    ask(server_port, asked_of(demo_model))
    assert any(look().requests[-1] != looks[-1].requests[-1] for _ in range(3))


@pytest.mark.parametrize("key", [None, "guessed"])
def test_without_it_nobody_sees_others_documents(
    demo_model: str, server_port: int, key: str | None
):
    ask(server_port, asked_of(demo_model))
    seen = ServerObserver(f"http://127.0.0.1:{server_port}", key).observe(with_tree=True)
    assert seen.tree is None
    assert seen.requests == ()
    assert seen.counters.held["device"] > 0
    assert ("operator key" in seen.problem) is (key is not None)
    snapshot = {"ragcache": {"snapshot": 10, "trusted": "the engine's own"}}
    raw = ask(server_port, asked_of(demo_model) | {"kv_transfer_params": snapshot})
    assert set(raw["kv_transfer_params"]["ragcache"]) == {"tokens", "counters"}
    assert '"d1"' not in json.dumps(raw), "a random id may hold these letters, too"


def test_top_shows_the_server(
    demo_model: str,
    server_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    ask(server_port, asked_of(demo_model))
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", KEY)
    assert main(["top", f"127.0.0.1:{server_port}", "--once"]) == 0
    shown = capsys.readouterr().out
    for said in ("d1", "device", "approximate", "waiting 0", "last requests"):
        assert said in shown


def require_hidden_key(server: subprocess.Popen[bytes], log: Path) -> None:
    """Fail if the key can be read in a process, or in a log that tells of each request."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    assert len(processes) > 1
    written = log.read_text()
    assert "Received request" in written
    for said in (written, *(f"{each.cmdline()} {each.environ()}" for each in processes)):
        assert KEY not in said
    assert sha256(KEY.encode()).hexdigest() not in written


def require_conventions(metrics: str) -> None:
    """Fail if promtool complains about one of RAGCache's metrics; those of others are theirs."""
    ours = [line for line in metrics.splitlines() if re.match(r"(# \w+ )?ragcache_", line)]
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input="\n".join([*ours, ""]),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


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
