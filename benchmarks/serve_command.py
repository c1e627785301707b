"""Runs `ragcache serve` for a benchmark."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2


@contextmanager
def serving(
    arguments: Sequence[str], for_vllm: Sequence[str], log: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `ragcache serve` until the block ends. Yields its URL and its process, once it answers.

    arguments, for_vllm: before and after the double dash, without where to listen. log: what it writes.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    listening = ("--host", "127.0.0.1", "--port", port)
    words = [sys.executable, "-m", "ragcache_cli", "serve", *arguments, *listening, "--", *for_vllm]
    with log.open("wb") as written:
        process = subprocess.Popen(words, stdout=written, stderr=subprocess.STDOUT)
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
