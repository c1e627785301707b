"""Runs `ragcache serve` for a benchmark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2

TWO_CORES = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
Running = tuple[str, "subprocess.Popen[bytes]"]


@contextmanager
def serving(arguments: Sequence[str], for_vllm: Sequence[str], log: Path) -> Iterator[Running]:
    """Run `ragcache serve` until the block ends. Yields its URL and its process, once it answers.

    arguments, for_vllm: before and after the double dash, without where to listen. log: what it writes.
    """
    words = ["-m", "ragcache_cli", "serve", *arguments]
    with _run(words, ["--", *for_vllm], log) as running:
        yield running


@contextmanager
def vllm_serving(arguments: Sequence[str], log: Path) -> Iterator[Running]:
    """Run vLLM's own server in the same way. arguments: the model, and those of `vllm serve`."""
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", *arguments]
    with _run(words, [], log) as running:
        yield running


@contextmanager
def _run(words: Sequence[str], rest: Sequence[str], log: Path) -> Iterator[Running]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, *words, "--host", "127.0.0.1", "--port", port, *rest]
    with log.open("wb") as written:
        # vLLM keeps a core free for its scheduler; on two cores that halves the speed of a prefill.
        environment = os.environ | (TWO_CORES if os.cpu_count() == 2 else {})
        process = subprocess.Popen(
            command, stdout=written, stderr=subprocess.STDOUT, env=environment
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while not is_healthy(url):
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: see {log}")
            time.sleep(0.5)
        yield url, process
    finally:
        process.kill()
        process.wait()


def is_healthy(url: str) -> bool:
    """Return whether the server at this address answers."""
    try:
        return httpx2.get(f"{url}/health", timeout=10).status_code == 200
    except httpx2.HTTPError:
        return False
