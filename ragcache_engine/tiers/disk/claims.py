"""Tells the engines that share a folder how many bytes each of them was given.

    <folder>/engines/<random number>

Each engine keeps a locked file with its quota. A lock ends with its process, whatever ends it, and holds
across containers, where process ids say nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

FOLDER = "engines"


class Claim:
    """One engine's claim to a number of bytes in a folder, from now until `close`.

    Where the file cannot be made or locked, the engine knows of no other engine.
    """

    def __init__(self, folder: Path, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._place = folder / FOLDER
        self._path = self._place / os.urandom(8).hex()
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._place.mkdir(mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, str(quota_bytes).encode())
            self._file = file

    @property
    def name(self) -> str:
        """What this engine is called in the folder: 16 digits."""
        return self._path.name

    def is_alive(self, name: str) -> bool:
        """Return whether an engine of this name uses the folder now."""
        return name == self.name or _read_living(str(self._place / name)) is not None

    def largest(self) -> int:
        """Return the largest quota of the engines that use the folder now, this one among them."""
        largest = self._quota_bytes
        with contextlib.suppress(OSError), os.scandir(self._place) as entries:
            for entry in entries:
                if entry.name != self._path.name:
                    largest = max(largest, _read_living(entry.path) or 0)
        return largest

    def close(self) -> None:
        """Give the claim up."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(file)


def _read_living(path: str) -> int | None:
    """Return a living engine's quota; None for a dead one's, whose file is removed."""
    with contextlib.suppress(OSError, ValueError):
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(file, 32) or b"0")
        else:
            os.unlink(path)
        finally:
            os.close(file)
    return None
