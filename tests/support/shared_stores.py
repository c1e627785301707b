"""Starts the servers behind shared stores: Redis, where it is installed, and one that speaks like S3."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class RedisServer:
    """A real Redis server on this machine. arguments: more of its command line."""

    def __init__(self, *arguments: str, port: int | None = None) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            pytest.skip("neither redis-server nor valkey-server is installed")
        self.port = free_port() if port is None else port
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *arguments],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise TimeoutError("redis-server does not listen")

    def pause(self) -> None:
        """Let it answer nothing, while its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; all that it held is lost."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running_redis(*arguments: str) -> Iterator[RedisServer]:
    """Run a Redis server."""
    server = RedisServer(*arguments)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def running_s3() -> Iterator[str]:
    """Run a server that speaks as S3 does; yield the URL of a bucket, which the environment leads to."""
    pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    said = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        import boto3

        boto3.client("s3").create_bucket(Bucket="tensors")
        yield "s3://tensors/of-tests"
    finally:
        server.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def running_store(kind: str, folder: Path) -> Iterator[str]:
    """Run what a store of this kind needs; yield its URL. kind: redis, s3 or file."""
    if kind == "redis":
        with running_redis() as server:
            yield server.url
    elif kind == "s3":
        with running_s3() as url:
            yield url
    else:
        yield f"file://{folder / 'objects'}"


KINDS = ("redis", "s3", "file")
