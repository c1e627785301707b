"""One server of `ragcache serve`, as a child of this process that does not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

from ragcache_engine.errors import EngineStartFailed

STOP_S = 30.0
"""How long a server may take to end by itself."""

LOOK_S = 0.5

GUARD = 'read -r _; kill -9 "-$1" 2>/dev/null'
"""What a shell does that holds the other end of a pipe: once this process is gone, however it went, the
server and vLLM's processes below it go, too."""


class ServerProcess:
    """Starts a server that listens on a socket of its own, which only this user can reach.

    arguments: of `python`, up to where vLLM's own arguments may follow. environment: added to ours.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ragcache-replica-")
        self.socket = str(Path(self._folder.name, "server"))
        self._process = subprocess.Popen(
            [sys.executable, *arguments, "--uds", self.socket],
            env={**os.environ, **environment},
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The server's process, which leads a group of its own."""
        return self._process.pid

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the server answers. Raises EngineStartFailed."""
        deadline = time.monotonic() + timeout_s
        transport = httpx2.HTTPTransport(uds=self.socket)
        with httpx2.Client(transport=transport, base_url="http://replica", timeout=5) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise EngineStartFailed(
                        f"the server of this replica ended with status {self._process.returncode}; "
                        f"its output is in the replica's log"
                    )
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx2.TransportError:
                    time.sleep(LOOK_S)
        raise EngineStartFailed(
            f"the server of this replica did not answer within {timeout_s:.0f} s"
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until the server ends; return its status."""
        return self._process.wait()

    def stop(self) -> None:
        """End the server. May be called again."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._guard.stdin and not self._guard.stdin.closed:
            self._guard.stdin.close()  # whatever is left of the group goes
        self._guard.wait()
        self._folder.cleanup()
