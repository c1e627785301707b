"""Keeps Python's garbage collector from visiting, again and again, what importing vLLM leaves behind.

Importing vLLM makes some 700,000 objects that are never garbage. The collector would visit them many
times while they are made, which is a quarter of the time of the import, and all of them at every full
collection later. Importable without vLLM.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def importing_vllm() -> Iterator[None]:
    """Import vLLM without garbage collections, and exclude from later ones what it leaves.

    What the application has left as garbage by now is collected first, so that it is freed. Does nothing
    if vLLM was imported before, or if the application has switched the collector off.
    """
    if "vllm.v1.engine.async_llm" in sys.modules or not gc.isenabled():
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
        _exclude_all_objects()
    finally:
        gc.enable()


@cache
def exclude_imports_from_collection() -> None:
    """Tell Python's garbage collector to skip all objects that exist by now. Runs once in a process.

    A full collection, due about every thousand requests, would visit them all while every thread waits:
    0.3 s on a quiet machine, 0.8 s next to a busy model. vLLM's own server excludes them in the same way.
    Objects are still freed when nothing refers to them, except for reference cycles made before this
    call.
    """
    gc.collect()
    _exclude_all_objects()


def collect_closed_engine() -> None:
    """Free what a closed engine of vLLM leaves in reference cycles.

    Each has tokenizers of 50 MiB and more, three threads and nine open files of its sockets. They go with
    the engine's objects, and the next full collection may be an hour away: the collector counts objects,
    of which there are few. Does nothing if the application has switched the collector off.
    """
    if gc.isenabled():
        gc.collect()


def _exclude_all_objects() -> None:
    """Exclude all objects of the process from collection, until the interpreter ends.

    `gc.unfreeze()` undoes it, and must at the end: else Python leaves the modules of C++ extensions
    alive, and those of Triton print a long report about it.
    """
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)
