"""Sends the output of a process that vLLM spawns to the log file, even before vLLM runs there.

Python imports the caller's script and vLLM first, and vLLM prints while it is imported. multiprocessing
lets a program choose what it starts as Python; here that is a script, which redirects the output if its
process inherited the open log file. Only vLLM's process inherits it: its arguments hold an InheritedFile.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, spawn
from pathlib import Path

SCRIPT = Path(__file__).with_name("start_python.sh")


class InheritedFile:
    """Among what a new process gets from multiprocessing, it makes the process inherit an open file.

    There, it is None. descriptor: the file's, in this process; it has the same number in the new one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._process = descriptor, os.getpid()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        spawned = context.get_spawning_popen()
        if spawned is not None and os.getpid() == self._process:
            spawned.duplicate_for_child(self._descriptor)
        return type(None), ()


@contextmanager
def redirecting_from_the_start(log: Path, descriptor: int) -> Iterator[None]:
    """Redirect the output of processes that multiprocessing spawns and that inherit this descriptor.

    Does nothing for forked processes, nor while another engine of this process starts: then a line or
    two of vLLM may be seen.
    """
    python = os.fsdecode(spawn.get_executable())
    if python == str(SCRIPT) or not os.access(SCRIPT, os.X_OK):
        yield
        return
    variables = {
        "RAGCACHE_PYTHON": python,
        "RAGCACHE_LOG": str(log),
        "RAGCACHE_LOG_DESCRIPTOR": str(descriptor),
    }
    os.environ.update(variables)
    multiprocessing.set_executable(str(SCRIPT))
    try:
        yield
    finally:
        multiprocessing.set_executable(python)
        for name in variables:
            os.environ.pop(name, None)
