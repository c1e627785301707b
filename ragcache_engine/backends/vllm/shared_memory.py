"""Names the host tier's shared memory and removes what killed processes leave behind.

vLLM names the memory after the engine, and removes it when the engine is shut down. A process that is
killed removes nothing. So our engine ids contain the process id, which tells whose memory it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

from ragcache_engine.processes import is_alive

FOLDER = Path("/dev/shm")
PREFIX = "vllm_offload_"
OUR_ENGINES = "ragcache"
"""The beginning of our engines' ids."""


def make_engine_id() -> str:
    """Make an id for an engine of this process."""
    return f"{OUR_ENGINES}-{os.getpid()}-{uuid4().hex[:12]}"


def free_bytes() -> int:
    """Return how much more shared memory this machine or container gives out; 0 where it has none."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def remove(engine_id: str) -> None:
    """Remove an engine's memory if it is still there."""
    for path in FOLDER.glob(f"{PREFIX}{engine_id}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned() -> None:
    """Remove the memory of our engines whose process has died."""
    for path in FOLDER.glob(f"{PREFIX}{OUR_ENGINES}-*"):
        owner = path.name.removeprefix(f"{PREFIX}{OUR_ENGINES}-").split("-")[0]
        if owner.isdigit() and not is_alive(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()
