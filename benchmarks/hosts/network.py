"""Hosts on one machine: network namespaces with addresses of their own behind a bridge. Needs root.

Each host has its own /tmp and /dev/shm as well, so that nothing is shared but what travels through the
network, and the files that all of them read, such as the model's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

BRIDGE, OUTSIDE = "rgc-bridge", "10.77.0.254"
SHARED_MEMORY = "8g"


class NeedsRoot(Exception):
    """Namespaces cannot be made here."""


def require_namespaces() -> None:
    """Raise NeedsRoot where hosts cannot be made: before anything is started."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "unshare", "mount"))):
        raise NeedsRoot(
            "hosts are network namespaces: they need root, and the programs ip, nsenter, unshare, mount"
        )


class Host:
    """A host. address: its own. name: of its namespace."""

    def __init__(self, number: int) -> None:
        self.address, self.name = f"10.77.0.{number}", f"rgc-{number}"
        self._link = f"rgc-v{number}"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("link", "set", self._link, "master", BRIDGE, "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *words)
        # What holds the host's mounts, as long as it lives.
        self._holder = subprocess.Popen(
            [
                *("ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c"),
                "mount -t tmpfs tmpfs /tmp && "
                f"mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm && echo ready && "
                "exec sleep infinity",
            ],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()

    def start(
        self, command: Sequence[str], *, log: IO[bytes], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program on this host."""
        entered = ("nsenter", "-t", str(self._holder.pid), "-m", "-n", "--wd=" + str(Path.cwd()))
        return subprocess.Popen(
            [*entered, *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )

    def kill(self) -> None:
        """Let the host die: all its processes at once."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for pid in map(int, done.stdout.split()):
            if pid != self._holder.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        """Cut the host's link: what it sends and what is sent to it is lost."""
        _ip("link", "set", self._link, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        _ip("link", "set", self._link, "up")

    @contextlib.contextmanager
    def poor_link(self, delay_s: float, loss: float) -> Iterator[None]:
        """Let the host's frames come so much later, each way, and lose this share of them."""
        told = subprocess.run(
            ["ip", "-n", self.name, "-br", "link", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        )
        carrier = subprocess.Popen(
            [
                *(
                    sys.executable,
                    str(Path(__file__).with_name("poor_link.py")),
                    self.name,
                    "poor0",
                ),
                *(told.stdout.split()[2], BRIDGE, str(delay_s), str(loss)),
            ],
            stdout=subprocess.PIPE,
        )
        assert carrier.stdout is not None
        carrier.stdout.readline()
        self._move("eth0", "poor0")
        try:
            yield
        finally:
            self._move("poor0", "eth0")
            carrier.kill()
            carrier.wait()

    def _move(self, device: str, other: str) -> None:
        """Let the host's address stand on another device: connections go on."""
        _ip("-n", self.name, "link", "set", device, "down")
        _ip("-n", self.name, "addr", "flush", "dev", device)
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", other)
        _ip("-n", self.name, "link", "set", other, "up")

    def remove(self) -> None:
        """Kill and remove the host."""
        self.kill()
        self._holder.kill()
        self._holder.wait()
        _ip("netns", "del", self.name)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._link)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make hosts, which this process reaches as well, and remove them after the block."""
    require_namespaces()
    _ip("link", "add", BRIDGE, "type", "bridge")
    made: list[Host] = []
    try:
        _ip("addr", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for number in range(1, count + 1):
            made.append(Host(number))
        time.sleep(0.5)  # a bridge learns its ports
        yield made
    finally:
        for host in made:
            host.remove()
        _ip("link", "del", BRIDGE)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
