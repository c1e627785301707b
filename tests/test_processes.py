"""A process that is told to does not outlive its parent, not even one that is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")

SCRIPT = """
import multiprocessing, time
from ragcache_engine.processes import end_with_parent

def child():
    end_with_parent()
    print("ready", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=child)
    process.start()
    print(process.pid, flush=True)
    end_with_parent()  # of no consequence in a process that a shell has started
    process.join()
"""


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout
        child = psutil.Process(int(one.stdout.readline()))
        said, was_there = one.stdout.readline(), child.is_running()
        one.kill()
    assert (said, was_there) == ("ready\n", True)
    child.wait(timeout=30)
