"""A real Prometheus for the tests that need one."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest


class Prometheus:
    """A running Prometheus. port: where it answers."""

    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return what Prometheus answers; fails the test if it cannot evaluate the query."""
        asked = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{asked}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        found: list[dict[str, Any]] = content["data"]["result"]
        return found

    def wait_for(self, expression: str) -> list[dict[str, Any]]:
        """Ask until there is an answer."""
        for _ in range(120):
            try:
                if found := self.query(expression):
                    return found
            except OSError:
                pass  # it is starting
            time.sleep(0.5)
        pytest.fail(f"Prometheus never had an answer to {expression}")


@pytest.fixture
def prometheus_on(tmp_path: Path) -> Callable[[int, Path], AbstractContextManager[Prometheus]]:
    """Starts a real Prometheus that scrapes a port of this machine's every second, with these rules."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed; it is a package of Debian's")

    @contextmanager
    def start(scraped_port: int, rules: Path) -> Iterator[Prometheus]:
        port = free_port()
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{rules}']\n"
            "scrape_configs:\n"
            f"  - {{job_name: ragcache, static_configs: [{{targets: ['127.0.0.1:{scraped_port}']}}]}}\n"
        )
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'prometheus'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(30)

    return start


def free_port() -> int:
    """Return a port of this machine's that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which `ragcache monitoring` wrote."""
    from ragcache_cli.main import main

    folder = tmp_path_factory.mktemp("monitoring")
    assert main(["monitoring", str(folder)]) == 0
    return folder
