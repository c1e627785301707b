"""A folder of block files with a byte quota, which several engines may share.

    <folder>/<digest of the origin>/<first two letters of the name>/<name>.kv

The quota is over everything of ours in the folder, whoever wrote it. The knowledge tree chooses among
the blocks it knows; files it does not know, from an earlier life or another engine, leave before them,
the longest unused first. Nothing is locked: a file that another engine has removed is a miss.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ragcache_engine.processes import is_alive
from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile, document_mark

SUFFIX = ".kv"
ABANDONED_AFTER_S = 600.0
"""An unfinished file as old as this belongs to a process that has died."""


RECOUNTS_PER_QUOTA = 16
"""How often what others write is counted while this engine writes a quota: so far it may be exceeded."""


class FolderFull(Exception):
    """The quota has no room for the block: what fills it belongs to others, or was used since."""


class _StoredFile(NamedTuple):
    used_s: float
    size_bytes: int
    path: Path


class DiskFolder:
    """Block files of one origin in a shared folder. One thread may write and another read.

    quota_bytes: what all block files in the folder may take together.
    Making one creates the folder, removes what dead processes left unfinished, and counts what there
    is. Raises OSError if the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, origin: Origin, quota_bytes: int) -> None:
        self.folder = folder
        self.quota_bytes = quota_bytes
        self._origin = origin
        self._lock = threading.Lock()
        self._home = folder / origin.digest()
        self._home.mkdir(parents=True, exist_ok=True)
        _require_writable(self._home)
        _remove_abandoned(folder)
        self.used_bytes = sum(file.size_bytes for file in _list_files(folder))
        self._uncounted_bytes = 0  # written since

    def holds(self, name: str) -> bool:
        """Whether there is a file of this name; reading may still find it unusable. Any thread."""
        return os.path.exists(self._path(name))

    def write(
        self,
        name: str,
        documents: Sequence[str],
        payload: memoryview,
        is_known: Callable[[str], bool],
    ) -> int:
        """Keep a block; returns the bytes written, 0 if it was there. Raises FolderFull, OSError.

        documents: marks of all documents its tensors were computed from.
        is_known: whether the tree knows the block of this name, and so decides over it.
        """
        path = self._path(name)
        if path.exists():
            return 0
        needed = block_file.file_bytes(self._origin, name, documents, payload)
        self._uncounted_bytes += needed
        if (
            self.used_bytes + needed > self.quota_bytes
            or self._uncounted_bytes > self.quota_bytes // RECOUNTS_PER_QUOTA
        ):
            self._make_room(needed, is_known)
        size_bytes = block_file.write(path, self._origin, name, documents, payload)
        with self._lock:
            self.used_bytes += size_bytes
        return size_bytes

    def read(self, name: str, target: memoryview) -> int:
        """Fill `target` with a block; returns the bytes read.

        Raises FileNotFoundError, UnusableFile (the file is removed then), OSError.
        """
        path = self._path(name)
        try:
            size_bytes = block_file.read(path, self._origin, name, target)
        except UnusableFile:
            self.remove(name)
            raise
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now, whoever counts
        return size_bytes

    def remove(self, name: str) -> None:
        """The block is not kept any more. Nothing happens if there is none."""
        self._remove_file(self._path(name))

    def _remove_file(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            size_bytes = path.stat().st_size
            path.unlink()
            with self._lock:
                self.used_bytes = max(0, self.used_bytes - size_bytes)

    def _make_room(self, needed: int, is_known: Callable[[str], bool]) -> None:
        """Count again, since others write here too, and remove what the tree does not know."""
        files = sorted(_list_files(self.folder))
        with self._lock:
            self.used_bytes = sum(file.size_bytes for file in files)
            self._uncounted_bytes = 0
        for file in files:
            if self.used_bytes + needed <= self.quota_bytes:
                return
            if file.path.parent.parent != self._home or not is_known(file.path.stem):
                self._remove_file(file.path)
        if self.used_bytes + needed > self.quota_bytes:
            raise FolderFull(
                f"{self.folder} is full: {self.used_bytes} of {self.quota_bytes} bytes"
            )

    def _path(self, name: str) -> Path:
        return self._home / name[:2] / f"{name}{SUFFIX}"


def forget_documents(folder: Path, document_ids: Iterable[str]) -> int:
    """Remove every block computed from one of the documents; returns how many. Any process.

    It reads the header of each file in the folder. What cannot be read is removed as well, for it
    cannot say that it holds none of them.
    """
    marks = {document_mark(document_id) for document_id in document_ids}
    removed = 0
    for file in _list_files(folder):
        try:
            concerned = not marks.isdisjoint(block_file.read_document_marks(file.path))
        except UnusableFile:
            concerned = True
        except OSError:
            continue
        if concerned:
            with contextlib.suppress(OSError):
                file.path.unlink()
                removed += 1
    return removed


def _list_files(folder: Path) -> Iterator[_StoredFile]:
    """Every block file, of any origin."""
    for path in folder.glob(f"*/??/*{SUFFIX}"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            yield _StoredFile(stat.st_mtime, stat.st_size, path)


def _remove_abandoned(folder: Path) -> None:
    oldest = time.time() - ABANDONED_AFTER_S
    for path in folder.glob(f"*/??/*{block_file.UNFINISHED_SUFFIX}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest or not is_alive(_writer_process(path)):
                path.unlink()


def _writer_process(path: Path) -> int:
    """The process that was writing the file, as its name says; 0 if it does not."""
    number = path.name.removesuffix(block_file.UNFINISHED_SUFFIX).rpartition(".")[2]
    return int(number) if number.isdigit() else 0


def _require_writable(folder: Path) -> None:
    probe = folder / f"probe.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
