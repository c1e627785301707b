"""Servers for tests: real processes of `ragcache serve` and of plain vLLM, on a free port."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ragcache_engine

ROOT = Path(ragcache_engine.__file__).parents[1]
START_S = 600


@dataclass(frozen=True)
class RealServer:
    """A server in a process of its own. log: what it wrote."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@contextmanager
def ragcache_serve(
    model: str,
    log: Path,
    *arguments: str,
    vllm: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Iterator[RealServer]:
    """Run `ragcache serve` until the block ends. vllm: arguments behind the double dash."""
    command = [sys.executable, "-m", "ragcache_cli", "serve", model, *arguments, "--", *vllm]
    with _run(command, log, environment or {}) as server:
        yield server


@contextmanager
def vllm_serve(model: str, log: Path, *arguments: str) -> Iterator[RealServer]:
    """Run plain `vllm serve` until the block ends."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    with _run([*command, *arguments], log, {}) as server:
        yield server


@contextmanager
def _run(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[RealServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    log.write_text(f"{shlex.join(command)}\n")
    with log.open("ab") as written:
        process = subprocess.Popen(
            command,
            stdout=written,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
    server = RealServer(f"http://127.0.0.1:{port}", process, log)
    try:
        _wait_until_healthy(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_healthy(server: RealServer) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.process.poll() is None, f"the server ended: {server.tail()}"
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {server.tail()}")
