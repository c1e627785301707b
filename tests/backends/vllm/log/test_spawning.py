"""A spawned process that inherits the log file writes all its output there, and no other process does."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import spawn
from pathlib import Path

import pytest

from ragcache_engine.backends.vllm.log.spawning import InheritedFile, redirecting_from_the_start


def say(what: str, inherited: object) -> None:
    """Run in another process: print, and end well only if nothing but None came along."""
    print(what, flush=True)
    os.write(2, f"{what} from C\n".encode())
    sys.exit(0 if inherited is None else 1)


def run(what: str, inherited: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=say, args=(what, inherited))
    process.start()
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.slow
def test_only_the_process_that_inherits_the_file_writes_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    log = tmp_path / "vllm.log"
    with log.open("ab") as file:
        descriptor = os.dup2(file.fileno(), 77, inheritable=False)
    try:
        with redirecting_from_the_start(log, descriptor):
            run("vLLM", InheritedFile(descriptor))
            run("the application", None)
    finally:
        os.close(descriptor)
    shown = capfd.readouterr()
    assert log.read_text() == "vLLM\nvLLM from C\n"
    assert (shown.out, shown.err) == ("the application\n", "the application from C\n")


def test_afterwards_processes_start_as_before(tmp_path: Path):
    before = spawn.get_executable(), dict(os.environ)
    with pytest.raises(RuntimeError), redirecting_from_the_start(tmp_path / "log", 77):
        raise RuntimeError
    assert (spawn.get_executable(), dict(os.environ)) == before


@pytest.mark.slow
def test_two_engines_that_start_at_once_leave_nothing_behind(tmp_path: Path):
    before = spawn.get_executable()
    with redirecting_from_the_start(tmp_path / "first", 77):
        with redirecting_from_the_start(tmp_path / "second", 78):
            run("either", None)
        run("the first", None)
    assert spawn.get_executable() == before
