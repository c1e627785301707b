"""A folder of block files with a byte quota. Several engines may share it.

    <folder>/<digest of the origin>/<first two letters of the name>/<name>.kv

The quota covers all block files in the folder, whichever engine wrote them. The knowledge tree chooses
which of its own blocks to evict. Before those, the folder removes files that the tree does not know,
from an earlier process or another engine, the longest unused first. There are no locks: a file that
another engine has removed is a miss.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ragcache_engine.processes import is_alive
from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile, document_mark

SUFFIX = ".kv"
OUR_NAME, OUR_HOME = re.compile("[0-9a-f]{16,}"), re.compile("[0-9a-f]{16}")
OUR_UNFINISHED = re.compile(
    rf"[0-9a-f]{{16,}}{re.escape(SUFFIX)}(\.[0-9a-f]{{8}})?\.\d+{re.escape(block_file.UNFINISHED_SUFFIX)}"
)
"""What the names of blocks, of origins and of unfinished files look like. Others are never touched."""
ABANDONED_AFTER_S = 600.0
"""The age in seconds from which an unfinished file counts as left behind by a dead process."""

RECOUNTS_PER_QUOTA = 16
"""How often to count the folder's bytes again while this engine writes as many bytes as the quota.

Other engines write between two counts, so the quota may be exceeded by what they write meanwhile."""


class FolderFull(Exception):
    """The quota has no room for the block next to the files that the tree keeps."""


class NotOurFile(Exception):
    """Something that no disk cache made lies under a block's name. It stays; the block is not written."""


class _StoredFile(NamedTuple):
    used_s: float
    size_bytes: int
    path: Path


class DiskFolder:
    """The block files of one origin in a shared folder. One thread may write while another reads.

    quota_bytes: bytes that all block files in the folder may take together, whatever their origin.
    used_bytes: bytes that they take, as far as this engine knows.
    The constructor creates the folder, removes the unfinished files of dead processes, and counts the
    bytes. It raises OSError if the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, origin: Origin, quota_bytes: int) -> None:
        self.folder = folder
        self.quota_bytes = quota_bytes
        self._origin = origin
        self._lock = threading.Lock()
        self._home = folder / origin.digest()
        for made in (folder, self._home):  # what they hold is nobody else's
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_writable(self._home)
        _remove_abandoned(folder)
        self.used_bytes = sum(file.size_bytes for file in _list_files(folder))
        self._uncounted_bytes = 0  # written since the latest count

    def holds(self, name: str) -> bool:
        """Whether there is a file of this name. Reading may still find it unusable. Any thread."""
        return block_file.is_regular(self._path(name))

    def write(
        self,
        name: str,
        documents: Sequence[str],
        payload: memoryview,
        is_known: Callable[[str], bool],
    ) -> int:
        """Write a block; return the bytes written, 0 if its file was there already.

        documents: marks of all documents that its tensors were computed from.
        is_known: tells whether the tree decides over the file of this name; such files are not removed.
        Raises FolderFull if the quota has no room, NotOurFile, OSError.
        """
        path = self._path(name)
        if block_file.is_regular(path):
            return 0
        if os.path.lexists(path):
            raise NotOurFile(f"{path} is not a file of the disk cache; move it away")
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
        """Read a block into `target`; return the bytes read.

        Raises FileNotFoundError; UnusableFile, after removing the file; OSError.
        """
        path = self._path(name)
        try:
            size_bytes = block_file.read(path, self._origin, name, target)
        except UnusableFile:
            self.remove(name)
            raise
        with contextlib.suppress(OSError):
            os.utime(path)  # its time of use, for every engine that shares the folder
        return size_bytes

    def remove(self, name: str) -> None:
        """Remove a block's file. Nothing happens if there is none."""
        self._remove_file(self._path(name))

    def _remove_file(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            size_bytes = path.lstat().st_size
            if not block_file.is_regular(path):
                return
            path.unlink()
            with self._lock:
                self.used_bytes = max(0, self.used_bytes - size_bytes)

    def _make_room(self, needed: int, is_known: Callable[[str], bool]) -> None:
        """Count the folder again, and remove files that the tree does not know until there is room.

        Raises FolderFull if there is no room even then.
        """
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
    """Remove every block file computed from one of the documents; return how many. Any process.

    This reads the header of each file in the folder. A file with an unusable header is removed as well,
    because it may have been computed from one of them.
    """
    marks = {document_mark(document_id) for document_id in document_ids}
    removed = 0
    for file in _list_files(folder):
        try:
            is_concerned = not marks.isdisjoint(block_file.read_document_marks(file.path))
        except UnusableFile:
            is_concerned = True
        except OSError:
            continue
        if is_concerned:
            with contextlib.suppress(OSError):
                file.path.unlink()
                removed += 1
    return removed


def _list_files(folder: Path) -> Iterator[_StoredFile]:
    """Yield every block file in the folder, of any origin."""
    for path in folder.glob(f"*/??/*{SUFFIX}"):
        if not _is_ours(path):
            continue
        with contextlib.suppress(OSError):
            stat = path.lstat()
            yield _StoredFile(stat.st_mtime, stat.st_size, path)


def _is_ours(path: Path) -> bool:
    """Whether a disk cache made this file: by its place, its name and its kind."""
    return (
        OUR_NAME.fullmatch(path.stem) is not None
        and path.parent.name == path.stem[:2]
        and _lies_in_our_folders(path)
        and block_file.is_regular(path)
    )


def _lies_in_our_folders(path: Path) -> bool:
    """Whether the two folders above a file are a disk cache's own; links to other places are not."""
    home = path.parent.parent
    return OUR_HOME.fullmatch(home.name) is not None and not any(
        map(os.path.islink, (home, path.parent))
    )


def _remove_abandoned(folder: Path) -> None:
    oldest = time.time() - ABANDONED_AFTER_S
    for path in folder.glob(f"*/??/*{block_file.UNFINISHED_SUFFIX}"):
        if (
            OUR_UNFINISHED.fullmatch(path.name) is None
            or not _lies_in_our_folders(path)
            or not block_file.is_regular(path)
        ):
            continue
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < oldest or not is_alive(_writer_process(path)):
                path.unlink()


def _writer_process(path: Path) -> int:
    """Return the id of the process that was writing the file, from its name; 0 if it has none."""
    number = path.name.removesuffix(block_file.UNFINISHED_SUFFIX).rpartition(".")[2]
    return int(number) if number.isdigit() else 0


def _require_writable(folder: Path) -> None:
    probe = folder / f"probe.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
