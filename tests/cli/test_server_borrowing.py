"""A server with `--reuse anywhere`: clients' requests borrow, and the answer tells what."""

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
from ragcache_engine import Corpus, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.anywhere.calibration import Calibration, CalibrationKey
from ragcache_engine.dashboard import ServerObserver

pytestmark = pytest.mark.vllm

KEY = "the operator's own key"
ANYWHERE = ("--reuse", "anywhere", "--recompute-ratio", "0.25")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["serve", *arguments, "--show"]) == 0
    return shlex.split(capsys.readouterr().out)


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def settings_of(words: list[str]) -> dict[str, Any]:
    transfer = json.loads(after(words, "--kv-transfer-config"))
    settings: dict[str, Any] = transfer["kv_connector_extra_config"]["ragcache"]
    return settings


def test_ratio_and_worker_travel_in_vllms_own_arguments(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    words = shown(capsys, demo_model, *ANYWHERE)
    assert settings_of(words)["recompute_ratio"] == 0.25
    assert after(words, "--worker-cls").endswith("BorrowingWorker")


def test_without_the_flag_nothing_of_it_is_there(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    words = shown(capsys, demo_model)
    assert settings_of(words)["recompute_ratio"] is None
    assert "--worker-cls" not in words


def test_the_calibrated_ratio_is_the_one_for_documents_behind_neighbours(
    demo_model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    for donors, ratio in (("alone", 0.5), ("neighbours", 0.1)):
        config = EngineConfig(
            model=demo_model, reuse="anywhere", recompute_ratio=ratio, donors=donors
        )
        key = CalibrationKey.of(config)
        found = Calibration(key, ratio, 0.97, 0.96, 0.98, 0.95, 50, "2026-11-24")
        key.path.parent.mkdir(parents=True, exist_ok=True)
        key.path.write_text(found.to_json())
    words = shown(capsys, demo_model, "--reuse", "anywhere")
    assert settings_of(words)["recompute_ratio"] == 0.1, "a client tells its documents' neighbours"
    assert settings_of(words)["least_rouge_l"] == pytest.approx(0.95 * 0.98)


def test_missing_donors_are_left_to_idle_time_unless_asked_otherwise(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    assert settings_of(shown(capsys, demo_model, *ANYWHERE))["donors_later"]
    words = shown(capsys, demo_model, *ANYWHERE, "--missing-donors", "compute")
    assert not settings_of(words)["donors_later"]


def test_donors_are_packed_where_that_is_asked_for(
    demo_model: str, capsys: pytest.CaptureFixture[str]
):
    assert not settings_of(shown(capsys, demo_model, *ANYWHERE))["packs_donors"]
    assert settings_of(shown(capsys, demo_model, *ANYWHERE, "--donor-dtype", "int8"))[
        "packs_donors"
    ]


def test_a_ratio_beyond_one_is_refused(demo_model: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["serve", demo_model, "--reuse", "anywhere", "--recompute-ratio", "1.5", "--show"])
    assert "a number from 0 to 1 is needed" in capsys.readouterr().err


@pytest.mark.timeout(600)
def test_requests_with_segments_borrow_and_exact_ones_do_not(
    demo_model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = ("--port", str(port), "--host", "127.0.0.1", "--max-model-len", "1024")
    given += ("--kv-cache-memory-bytes", "200000000", "--dtype", "float32")
    monkeypatch.setenv("RAGCACHE_OPERATOR_KEY", KEY)
    borrowing = (*ANYWHERE, "--missing-donors", "compute")
    assert main(["serve", demo_model, *borrowing, "--show", "--", *given]) == 0
    words = shlex.split(capsys.readouterr().out)
    log = tmp_path / "log"
    with open(log, "wb") as written:
        server = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, log)
        segments = [[32, None], [132, "d1"], [232, "d2"]]
        told = ask(port, demo_model, {"segments": segments})
        first, second = told["reuse"]["documents"]
        assert (first["document"], first["borrowed"]) == ("d1", 0)
        assert (second["document"], second["borrowed"], second["recomputed"]) == ("d2", 74, 26)
        again = ask(port, demo_model, {"segments": segments})
        assert again["reuse"]["documents"][1]["tier"] == "device"
        seen = ServerObserver(f"http://127.0.0.1:{port}", KEY).observe(with_tree=True)
        d1, d2 = seen.requests[-1].documents
        assert (d1.cached.device, d1.borrowed.total) == (96, 0)
        # With the same plan as before, all but its last token was on the device.
        assert (d2.borrowed.device, d2.recomputed, d2.computed_tokens) == (99, 1, 1)
        assert seen.counters.recomputed_tokens == 27
        exact = ask(port, demo_model, {"segments": segments, "exact": True})
        assert "reuse" not in exact
        assert "exact" in exact["why_exact"]
        assert_borrows_behind_neighbours(f"http://127.0.0.1:{port}")
        assert "\nragcache_borrowing_switched_off 0.0\n" in read_metrics(port)
    finally:
        server.terminate()
        server.wait(60)


def read_metrics(port: int) -> str:
    headers = {"Authorization": f"Bearer {KEY}"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        page: str = answer.read().decode()
    return page


def assert_borrows_behind_neighbours(url: str) -> None:
    tides, salt, reefs = (
        Document(name, f"All that is known about {name} is written here. " * 8)
        for name in ("tides", "salt", "reefs")
    )
    corpus = Corpus(1, lambda documents: [reefs for _ in documents])
    with RAGCacheEngine.connect(url) as engine:
        assert (engine.config.reuse, engine.config.donors) == ("anywhere", "neighbours")
        with engine.retrieval("Why?") as retrieval:
            retrieval.look_up_neighbours([tides, salt], corpus)
            retrieval.found([tides, salt])
        prompt = f"You know the sea.\n\n{tides.text}\n\n{salt.text}\n\nWhy?"
        usage = engine.generate(prompt, options=SamplingOptions(max_tokens=2)).usage
    assert usage.reused[1].document == "salt"
    assert usage.reused[1].borrowed > usage.reused[1].recomputed > 0
    tree = ServerObserver(url, KEY).observe(with_tree=True).tree
    assert tree is not None
    named = {name for one in tree.documents for name in one.documents}
    assert "reefs" in named, "no prompt has it: a donor stands behind it"


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(400):
        if server.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-3000:]}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail(f"the server did not come up: {log.read_text()[-3000:]}")


def ask(port: int, model: str, message: dict[str, Any]) -> dict[str, Any]:
    """Ask about 250 tokens; return what the server tells of their tensors."""
    body = {
        "model": model,
        "prompt": [number % 20_000 + 100 for number in range(250)],
        "max_tokens": 2,
        "temperature": 0,
        "kv_transfer_params": {"ragcache": message},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        told: dict[str, Any] = json.load(answer)["kv_transfer_params"]["ragcache"]
    return told
