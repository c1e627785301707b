"""Spawns vLLM's processes, and refuses a main script that each of them would run again.

On a GPU vLLM forks them, unless it is told otherwise. A fork copies locks in whatever state the threads
of the user's process have them: those of RAGCache's own loop, and those of OpenMP, with which Faiss
searches. So RAGCache lets vLLM spawn, as on a CPU vLLM always does.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ragcache_engine.errors import UnguardedMain

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@contextmanager
def spawning_processes() -> Iterator[None]:
    """Let vLLM spawn the processes that it starts in this block, unless the user's METHOD says else."""
    if METHOD in os.environ:
        yield
        return
    os.environ[METHOD] = "spawn"
    try:
        yield
    finally:
        os.environ.pop(METHOD, None)


def require_guarded_main() -> None:
    """Raise UnguardedMain if the call comes from the top level of a main script without a guard.

    Each spawned process of vLLM's imports the main script again, and would start an engine of its own.
    Calls from modules, notebooks and tests pass.
    """
    frame = _main_module_frame()
    if frame is None:
        return
    path = frame.f_code.co_filename
    try:
        with open(path, encoding="utf-8") as file:
            source = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return
    for statement in source.body:
        if statement.lineno <= frame.f_lineno <= (statement.end_lineno or statement.lineno):
            if not _is_guard(statement):
                raise UnguardedMain(
                    f"{path}, line {frame.f_lineno}: vLLM's processes import this script again, so "
                    f'put the lines that use the engine under `if __name__ == "__main__":`'
                )
            return


def _main_module_frame() -> FrameType | None:
    """Return the top-level frame of the main script; None if there is no file for spawn to import."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    frame: FrameType | None = sys._getframe()
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_globals is getattr(
            main, "__dict__", None
        ):
            return frame if frame.f_code.co_filename == path else None
        frame = frame.f_back
    return None


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
