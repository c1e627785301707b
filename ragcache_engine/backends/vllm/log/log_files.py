"""The files that keep vLLM's log: one for each engine, the latest few of which stay."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from ragcache_engine.cache_home import cache_home
from ragcache_engine.processes import is_alive

KEPT_FILES = 20
"""How many files to keep, beside those of running engines."""

_PREFIX, _SUFFIX = "vllm-", ".log"


def create_log_file(folder: Path | None = None) -> Path:
    """Create an empty file that only its owner reads, and remove the oldest of earlier engines.

    folder: by default one in RAGCache's own folder. If it cannot be written, the file is made where
      temporary files go.
    """
    folder = folder or cache_home() / "logs"
    name = f"{_PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(_SUFFIX, name, folder)
    except OSError:
        handle, path = tempfile.mkstemp(_SUFFIX, f"ragcache-{name}")
    else:
        _remove_oldest(folder)
    os.close(handle)
    return Path(path)


def _remove_oldest(folder: Path) -> None:
    # The names begin with the time, so they sort by age.
    ended = [path for path in sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}")) if not _is_in_use(path)]
    for path in ended[:-KEPT_FILES]:
        with suppress(OSError):
            path.unlink()


def _is_in_use(path: Path) -> bool:
    """Return whether the process that made the file still runs."""
    process = path.stem.split("-")[3:4]
    return bool(process) and process[0].isdigit() and is_alive(int(process[0]))
