"""A process that is told to ends with its parent, even a killed one, and leaves Ctrl-C to it."""

from __future__ import annotations

import contextlib
import os
import signal
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


@pytest.mark.slow
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


LOADS = """
import multiprocessing, os, signal
from contextlib import nullcontext
from ragcache_engine.processes import end_on_interrupt

def note(number, frame):
    pass

def child():
    signal.signal(signal.SIGINT, note)  # as vLLM's core process does while it starts
    try:
        with {block}():
            os.kill(os.getpid(), signal.SIGINT)
            print("went on", flush=True)
    except SystemExit:
        print("gave up", flush=True)
    print("the handler before:", signal.getsignal(signal.SIGINT) is note, flush=True)

if __name__ == "__main__":
    before = signal.getsignal(signal.SIGINT)
    with end_on_interrupt():  # of no consequence in a process that a shell has started
        assert signal.getsignal(signal.SIGINT) is before
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


INTERRUPTED = """
import multiprocessing, signal, time
from ragcache_engine.processes import ignore_interrupts

def child():
    def end(number, frame):
        raise SystemExit(7)
    signal.signal(signal.SIGTERM, end)  # as vLLM does
    signal.signal(signal.SIGINT, end)
    ignore_interrupts()
    print("ready", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    # As in a terminal: a shell starts what runs in the background with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    ignore_interrupts()  # of no consequence in a process that a shell has started
    try:
        process.join()
    except KeyboardInterrupt:
        process.join(1)
        print("alive", process.is_alive(), flush=True)
    process.terminate()
    process.join()
    print("ended with", process.exitcode)
"""


@pytest.mark.parametrize(
    ("block", "said"), [("end_on_interrupt", "gave up"), ("nullcontext", "went on")]
)
@pytest.mark.slow
def test_an_interrupt_ends_the_work_that_it_may_end_and_no_other(
    tmp_path: Path, block: str, said: str
):
    script = tmp_path / "parent.py"
    script.write_text(LOADS.format(block=block))
    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines() == [said, "the handler before: True"]


@pytest.mark.slow
def test_an_interrupt_ends_the_waiting_of_the_parent_and_not_the_child(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, process_group=0
    ) as one:
        assert one.stdout
        try:
            assert one.stdout.readline() == "ready\n"
            os.killpg(one.pid, signal.SIGINT)
            said, _ = one.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
    assert said.splitlines() == ["alive True", "ended with 7"]
