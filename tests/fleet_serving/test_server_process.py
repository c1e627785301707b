"""A replica's server ends with the replica, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import eventually

from ragcache_engine import EngineStartFailed
from ragcache_engine.fleet_serving.server_process import ServerProcess

SERVER = Path(__file__).parents[1] / "support" / "memory_server.py"
PARENT = """
import sys, time
from ragcache_engine.fleet_serving.server_process import ServerProcess
server = ServerProcess([sys.argv[1]], {})
server.wait_until_ready(60)
print(server.pid, flush=True)
time.sleep(600)
"""


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def wait_until_gone(process: int) -> None:
    assert eventually(lambda: not is_running(process))


@pytest.mark.slow
def test_it_starts_and_stops_and_leaves_nothing():
    server = ServerProcess([str(SERVER)], {})
    server.wait_until_ready(60)
    assert server.is_running
    server.stop()
    server.stop()
    assert not server.is_running
    assert not Path(server.socket).parent.exists()


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_it_along():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(SERVER)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    process = int(parent.stdout.readline())
    assert is_running(process)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_until_gone(process)


def test_one_that_does_not_start_is_told_of():
    server = ServerProcess(["-c", "raise SystemExit(3)"], {})
    with pytest.raises(EngineStartFailed, match="status 3"):
        server.wait_until_ready(60)
    server.stop()
