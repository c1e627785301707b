"""The host tier's shared memory by name, so that what a killed process leaves does not stay.

vLLM names the memory after the engine and removes it when the engine ends in order. A process that was
killed removes nothing, so the name says whose it is.
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


def make_engine_id() -> str:
    """Names an engine of this process."""
    return f"{OUR_ENGINES}-{os.getpid()}-{uuid4().hex[:12]}"


def remove(engine_id: str) -> None:
    """Remove an engine's memory if it is still there."""
    for path in FOLDER.glob(f"{PREFIX}{engine_id}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned() -> None:
    """Remove the memory of engines whose process has died."""
    for path in FOLDER.glob(f"{PREFIX}{OUR_ENGINES}-*"):
        owner = path.name.removeprefix(f"{PREFIX}{OUR_ENGINES}-").split("-")[0]
        if owner.isdigit() and not is_alive(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()
