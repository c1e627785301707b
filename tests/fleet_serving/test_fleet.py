"""A real fleet on Ray Serve, whose servers have no model: one start for all tests here."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

import httpx2
import psutil
import pytest

pytest.importorskip("ray.serve")
import ray

from ragcache_engine import ConfigError, Document, RAGCacheEngine
from ragcache_engine.dashboard import ServerObserver
from ragcache_engine.fleet_serving.fleet_settings import FleetSettings
from ragcache_engine.fleet_serving.running import _serves_on, running_fleet
from ragcache_engine.serving.keys import name_by_digest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(240)]

SERVER = Path(__file__).parents[1] / "support" / "memory_server.py"
SHOP, OPERATOR = "the key of the shop", "the operator's own key"
# Two cores that another test keeps busy take 57 s to start a replica.
BACK_S = 180.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of two replicas behind two doors."""
    keys = tmp_path_factory.mktemp("fleet") / "keys.toml"
    keys.write_text(f'[tenants]\nshop = ["{SHOP}"]\n')
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = FleetSettings(
        (str(SERVER),),
        {"RAGCACHE_KEYS": str(keys)},
        replicas=2,
        doors=2,
        max_requests=80,
        keys_file=str(keys),
    )
    with running_fleet(settings, host="127.0.0.1", port=port, operator_key=OPERATOR):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def door(fleet: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=fleet, headers={"Authorization": f"Bearer {SHOP}"}, timeout=90
    ) as made:
        yield made


def ask(door: httpx2.Client, prompt: str) -> tuple[str, str]:
    """Return a streamed answer, and the id that its replica gave it, which holds its process."""
    body = {"prompt": prompt, "stream": True, "temperature": 0}
    text, identity = "", ""
    with door.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for event in httpx2.EventSource(answer):
            if event.data != "[DONE]":
                said = json.loads(event.data)
                text += said["choices"][0]["text"]
                identity = said.get("id", identity)
    return text, identity


def expected(prompt: str) -> str:
    return "".join(f"{prompt[:12]}-{number} " for number in range(40))


def servers(door: httpx2.Client, want: int = 2) -> dict[int, int]:
    """Return the running streams of each server by its process, once so many servers were met."""
    met: dict[int, int] = {}
    deadline = time.monotonic() + BACK_S
    while len(met) < want and time.monotonic() < deadline:
        # A prompt of its own for each look, so that all replicas are looked at.
        said = door.request(
            "GET", "/version", content=json.dumps({"prompt": os.urandom(600).hex()})
        )
        met[said.json()["pid"]] = said.json()["running"]
    return met


def test_the_same_beginning_goes_to_the_same_replica_and_all_replicas_get_some(
    door: httpx2.Client,
):
    # Few enough that even one replica that is the home of them all stays below its share of the work.
    prompts = [f"{number} " * 600 for number in range(4)]
    replicas = [ask(door, prompt)[1] for prompt in prompts]
    assert [ask(door, prompt)[1] for prompt in prompts] == replicas
    others = {ask(door, f"{number} " * 600)[1] for number in range(4, 20)}
    assert len(others | set(replicas)) == 2


def test_a_client_of_ours_works_on_a_fleet(fleet: str):
    tides = Document("tides", "The moon pulls the oceans. " * 9)
    with RAGCacheEngine.connect(fleet, api_key=OPERATOR) as engine:
        # Balance may send the second elsewhere. Then both replicas have the document.
        for _ in range(2):
            assert engine.generate(f"{tides.text}\n\nWhy?", [tides]).text
        assert engine.generate(f"{tides.text}\n\nWhy?", [tides]).usage.cached.total > 0
        engine.forget(["tides"])
        assert engine.generate(f"{tides.text}\n\nWhy?", [tides]).usage.cached.total == 0


def test_keys_and_tenants_hold_behind_the_door(door: httpx2.Client, fleet: str):
    assert httpx2.post(f"{fleet}/v1/completions", json={"prompt": "p"}).status_code == 401
    said = door.post("/v1/completions", json={"prompt": "p", "cache_salt": "press"}).json()
    assert said["salt"] == "shop::press"
    assert door.post("/ragcache/forget", json={"document_ids": ["a"]}).status_code == 403


def test_the_operators_key_stands_in_no_process_and_no_log(fleet: str):
    (node,) = ray.nodes()
    logs = Path(node["ObjectStoreSocketName"]).parents[1].rglob("*.*")
    written = {str(log): log.read_text(errors="replace") for log in logs if log.is_file()}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            written[str(process)] = f"{process.cmdline()} {process.environ()}"
    assert any("raylet" in said for said in written.values())
    for where, said in written.items():
        assert OPERATOR not in said, where
        assert name_by_digest(OPERATOR) not in said, where


def test_an_operator_sees_the_tree_of_a_replica(fleet: str):
    with RAGCacheEngine.connect(fleet, api_key=OPERATOR) as engine:
        text = "The tree of a replica holds this. " * 9
        engine.generate(text, [Document("a leaf", text)])
    seen = ServerObserver(fleet, OPERATOR, OPERATOR).observe(with_tree=True)
    assert (seen.problem, seen.tree is not None) == ("", True)
    refused = ServerObserver(fleet, SHOP, OPERATOR).observe(with_tree=True)
    assert "operator key" in refused.problem


def test_a_reader_who_leaves_frees_the_replica(door: httpx2.Client):
    body = {"prompt": "leave " * 200, "stream": True, "temperature": 0}
    with door.stream("POST", "/v1/completions", json=body) as answer:
        next(iter(httpx2.EventSource(answer)))
    deadline = time.monotonic() + 20
    while sum(servers(door).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sum(servers(door).values()) == 0


def test_more_than_the_fleet_takes_is_refused_by_name(door: httpx2.Client):
    def status(number: int) -> int:
        body = {"prompt": f"{number} crowd"}
        return door.post("/v1/completions", json=body).status_code

    with ThreadPoolExecutor(80) as pool:
        found = list(pool.map(status, range(160)))
    assert set(found) == {200, 429}


def test_its_metrics_are_those_of_all_replicas(door: httpx2.Client, fleet: str):
    assert door.get("/metrics").status_code == 403
    seen = ServerObserver(fleet, api_key=OPERATOR).observe(with_tree=False)
    assert (seen.problem, seen.running) == ("", 0)
    page = httpx2.get(f"{fleet}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}).text
    replicas = {line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")}
    assert len(replicas) == 2


def test_a_fleet_that_would_listen_elsewhere_than_it_says_is_refused(fleet: str):
    port = int(fleet.rpartition(":")[2])
    assert _serves_on(port)
    with pytest.raises(ConfigError, match=f"--port {port}"):
        _serves_on(port + 1)


def test_the_example_app_streams_answers_from_a_fleet(fleet: str):
    for module in ("fastapi", "faiss", "langchain_core"):
        pytest.importorskip(module)
    from example_app import example_app

    with example_app(fleet, SHOP) as app:
        assert app.asking_again_finds_the_documents(replicas=2)


@pytest.mark.parametrize("victim", ["server", "actor", "model"])
def test_killed_replicas_lose_no_answer_and_come_back(door: httpx2.Client, victim: str):
    before = servers(door)
    killed: list[int] = []

    def one(number: int) -> bool:
        if number == 20:
            server = min(before)
            killed.append(parent_of(server) if victim == "actor" else server)
            # A model that dies leaves its server behind for a while.
            os.kill(killed[0], signal.SIGUSR1 if victim == "model" else signal.SIGKILL)
        prompt = f"{number} killed " * 80
        return ask(door, prompt)[0] == expected(prompt)

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(one, range(72)))
    after = servers(door)
    assert len(after) == 2
    assert min(before) not in after


def test_the_other_door_goes_on_where_one_dies(fleet: str, door: httpx2.Client):
    dead, other = sorted(doors())
    os.kill(dead, signal.SIGKILL)
    answered, deadline = 0, time.monotonic() + BACK_S
    # What the dead one had broke off, and what Serve still sends to it does.
    while len(doors() - {dead}) < 2 and time.monotonic() < deadline:
        with suppress(httpx2.HTTPError, AssertionError):
            assert ask(door, "after a door")[0] == expected("after a door")
            answered += doors() == {other}
    assert answered
    assert len(doors()) == 2
    assert all(ask(door, f"{n} door")[0] == expected(f"{n} door") for n in range(8))


def doors() -> set[int]:
    """Return the processes of the fleet's doors that live."""
    own = psutil.Process().children(recursive=True)
    return {
        each.pid
        for each in own
        if each.is_running()
        and each.status() != psutil.STATUS_ZOMBIE
        and ":Ingress" in " ".join(each.cmdline())
    }


def parent_of(process: int) -> int:
    status: Any = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid"))
