"""Makes the host tier's shared memory, so that nothing is left of it whatever ends its processes.

Every process of an engine maps one file, which it finds by its name. Once all have it, the name is
removed: the system frees the memory with the last process, even a killed one. Only an engine that is
killed while it starts leaves a file. Whose file that was, the system knows too: each process of an engine
holds a lock on it. Process ids would not tell, because containers that share /dev/shm number their own
processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from io import FileIO
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "vllm_offload_"
"""What vLLM puts before an engine's id, to name the file; and ".mmap" after it."""

OUR_ENGINES = "ragcache."


def name_memory(engine_id: str) -> str:
    """Return the id under which vLLM is to make this engine's memory: a file of ours, by its name."""
    return OUR_ENGINES + engine_id


def claim(memory: str, size_bytes: int) -> FileIO:
    """Make the file of this much memory, unless another process of the engine has; lock it for both.

    memory: from name_memory. The lock holds until the result is closed, or the process ends.
    Raises OSError if there is not so much shared memory.
    """
    path = FOLDER / f"{PREFIX}{memory}.mmap"
    while True:
        file = FileIO(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600), "r+")
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_at(file, path):
            break
        file.close()  # somebody took it for abandoned before the lock was set
    if os.fstat(file.fileno()).st_size < size_bytes:
        if free_bytes() < size_bytes:
            path.unlink(missing_ok=True)
            raise OSError(
                errno.ENOSPC,
                f"{FOLDER} has no {size_bytes >> 20} MiB free for the host tier: start the container "
                f"with a larger --shm-size or with --ipc=host, or choose a smaller host cache",
            )
        file.truncate(size_bytes)  # vLLM fills it with pages
    return file


def free_bytes() -> int:
    """Return how much more shared memory this machine or container gives out; 0 where it has none."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def remove(memory: str) -> None:
    """Remove the name of an engine's memory if it is still there. Who has mapped it keeps it."""
    for path in FOLDER.glob(f"{PREFIX}{memory}*"):
        with contextlib.suppress(OSError):
            path.unlink()


def remove_abandoned() -> None:
    """Remove the memory of our engines that were killed while they started."""
    for path in FOLDER.glob(f"{PREFIX}{OUR_ENGINES}*"):
        # Without the right to open it, or with a living engine's lock on it, it is not ours to remove.
        with contextlib.suppress(OSError), FileIO(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _is_at(file: FileIO, path: Path) -> bool:
    """Return whether this open file still has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
