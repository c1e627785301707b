"""A folder of block files with a byte quota. Several engines may share it.

    <folder>/<digest of the origin>/<first two letters of the name>/<name>.kv
    <folder>/forgotten/..., engines/..., kept/...     see tombstones.py, claims.py and kept_files.py

The quota covers all block files in the folder, whichever engine wrote them; of the quotas of the engines
that use the folder now, the largest counts. The knowledge tree chooses which of its own blocks to evict.
Before those, the folder removes files that the tree does not know, from an earlier process or another
engine, the longest unused first, but none that somebody keeps. Blocks have no locks: a file that another
engine has removed is a miss.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from ragcache_engine.processes import is_alive
from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import ForgottenFile, Origin, UnusableFile
from ragcache_engine.tiers.disk.claims import Claim
from ragcache_engine.tiers.disk.kept_files import (
    KeptFile,
    KeptFiles,
    clear_kept,
    forget_kept,
)
from ragcache_engine.tiers.disk.key_files import NO_STAMPS
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.naming import PLAIN, is_encrypted
from ragcache_engine.tiers.disk.shared_keys import KeyAway
from ragcache_engine.tiers.disk.tombstones import (
    Tombstones,
    clear_tombstones,
    leave_tombstones,
)

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

LONGEST_COUNT_S = 10.0
"""A full folder is counted again after so many seconds, even if this engine has written nothing."""

COARSEST_CLOCK_NS = 2_000_000_000
"""The coarsest clock of a filesystem, in nanoseconds."""


class FolderFull(Exception):
    """The quota has no room for the block next to the files that the tree keeps."""


class NotOurFile(Exception):
    """Something that no disk cache made lies under a block's name. It stays; the block is not written."""


class DocumentForgotten(Exception):
    """The block was computed from a document that has been forgotten since; it is not written."""


class _StoredFile(NamedTuple):
    used_s: float
    size_bytes: int
    place: str

    @property
    def path(self) -> Path:
        return Path(self.place)  # made late: making it takes longer than looking at the file


class DiskFolder:
    """The block files of one origin in a shared folder. One thread may write while others read.

    kept: which files somebody keeps. hides_earlier: whether files of earlier engines are hidden.
    quota_bytes: bytes that all block files in the folder may take together, whatever their origin. Of
      engines that share the folder, the largest quota counts.
    used_bytes: bytes that they take, as far as this engine knows.
    keys: what the files are encrypted with; None: they are not. With keys, files that are not encrypted
      are removed, and with new ones the tombstones of before.
    The constructor creates the folder, removes the unfinished files of dead processes, and counts the
    bytes. It raises OSError if the folder cannot be made or written to.
    """

    def __init__(
        self, folder: Path, origin: Origin, quota_bytes: int, keys: KeyRing | None = None
    ) -> None:
        self.folder = folder
        self.naming = keys.naming if keys else PLAIN
        self._keys = keys
        self.quota_bytes = quota_bytes
        self._origin = origin
        self._lock = threading.Lock()
        self._home = folder / origin.digest()
        for made in (folder, self._home):  # what they hold is nobody else's
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(self._home)
        _require_writable(self._home)
        _remove_abandoned(folder)
        if keys:
            _remove_plain(folder)
            if keys.is_new:
                clear_tombstones(folder)
                clear_kept(folder)
        self._claim = Claim(folder, quota_bytes)
        self._tombstones = Tombstones(folder)
        self.kept = KeptFiles(folder, self._home.name, self._claim.name, self._claim.is_alive)
        self.hides_earlier = False
        self._names: dict[str, set[str]] = {}  # of this origin's files, by their first two letters
        self._listed_ns: dict[str, int] = {}
        self.refresh()
        self.used_bytes = sum(file.size_bytes for file in _list_files(folder))
        self._uncounted_bytes = 0  # written since the latest count
        self._counted_s = -math.inf  # when the strays were looked for
        self._strays: deque[_StoredFile] = deque()  # unknown to the tree, the longest unused first

    def holds(self, name: str) -> bool:
        """Whether there is a file of this name, as far as this engine knows. Any thread.

        This looks at no disk. A file of another engine is known after the next `refresh`; one that
        another engine has removed is found missing when it is read.
        """
        return name in self._names.get(name[:2], ())

    def refresh(self) -> None:
        """Look for files that other engines have written, removed or kept. For the writing thread."""
        self.kept.refresh()
        if self.hides_earlier:
            return
        now_ns = time.time_ns()
        with contextlib.suppress(OSError), os.scandir(self._home) as folders:
            for part in folders:
                with contextlib.suppress(OSError):
                    changed_ns = part.stat(follow_symlinks=False).st_mtime_ns
                    if self._listed_ns.get(part.name) != changed_ns:
                        self._names[part.name] = _list_names(Path(part.path))
                        # A clock too coarse could hide what changes right after this look.
                        is_settled = changed_ns < now_ns - COARSEST_CLOCK_NS
                        self._listed_ns[part.name] = changed_ns if is_settled else 0

    def hide_earlier(self) -> None:
        """Know no file but those that this engine writes, until `show_earlier`.

        For as long as nobody can say which of them come from documents that other hosts have forgotten.
        """
        self.hides_earlier = True
        self._names.clear()
        self._listed_ns.clear()

    def show_earlier(self) -> None:
        """Undo `hide_earlier`: `refresh` finds the files."""
        self.hides_earlier = False

    def find_forgotten(self) -> dict[str, int]:
        """Return the marks of documents that another engine has forgotten, and when; each once."""
        return self._tombstones.find_new()

    def tidy(self) -> None:
        """Remove tombstones that are too old to matter; looks for them once an hour."""
        self._tombstones.tidy()

    def note_forgotten(self, times: Mapping[str, int]) -> None:
        """Note that this engine holds nothing any more that was computed before these times."""
        self._tombstones.note(times)

    def forget(self, documents: Sequence[str]) -> None:
        """Remove every file computed from these documents, and tell the other engines. Raises OSError."""
        marks = map(self.naming.mark, documents)
        self.note_forgotten(leave_tombstones(self.folder, marks))
        forget_documents(self.folder, documents, self._keys)
        self.refresh()

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
        Raises FolderFull if the quota has no room, NotOurFile, DocumentForgotten, OSError.
        """
        path = self._path(name)
        if block_file.is_regular(path):
            self.add_marks(name, documents)
        if block_file.is_regular(path):
            self._names.setdefault(name[:2], set()).add(name)
            return 0
        if os.path.lexists(path):
            raise NotOurFile(f"{path} is not a file of the disk cache; move it away")
        self._require_remembered(documents)
        content = self._origin, name, documents, payload, self._keys
        self._make_room(block_file.file_bytes(*content), is_known)
        size_bytes = block_file.write(path, *content)
        with self._lock:
            self.used_bytes += size_bytes
            self._uncounted_bytes += size_bytes
        try:
            # Whoever forgets leaves a tombstone and then removes files. If there is none now, this file
            # is among those that they will find.
            self._require_remembered(documents)
        except DocumentForgotten:
            self._remove_file(path)
            raise
        self._names.setdefault(name[:2], set()).add(name)
        return size_bytes

    def add_marks(self, name: str, documents: Sequence[str]) -> None:
        """Let a block's file carry these marks too: the same text has been given another id.

        A file that cannot carry them, or must not be used, is removed: it must not outlast the forgetting
        of one of these documents. Nothing happens if there is none. Raises OSError.
        """
        path = self._path(name)
        try:
            if block_file.read_document_marks(path, self._keys).issuperset(documents):
                return
        except FileNotFoundError:
            self._names.get(name[:2], set()).discard(name)
            return
        except UnusableFile:
            self.remove(name)
            return
        try:
            self._require_remembered(documents)
            more = block_file.add_marks(
                path, self._origin, name, documents, self._keys, self._tombstones.are_younger
            )
            self._require_remembered(documents)  # as in `write`
        except (UnusableFile, DocumentForgotten, KeyAway):
            self.remove(name)
        except OSError:
            self.remove(name)
            raise
        else:
            with self._lock:
                self.used_bytes += more

    def read(self, name: str, target: memoryview) -> int:
        """Read a block into `target`; return the bytes read.

        Raises FileNotFoundError; UnusableFile, after removing the file; OSError.
        """
        path = self._path(name)
        try:
            size_bytes = block_file.read(
                path, self._origin, name, target, self._keys, self._tombstones.are_younger
            )
        except FileNotFoundError:
            self._names.get(name[:2], set()).discard(name)
            raise
        except ForgottenFile as error:  # whoever forgot has not come to it yet
            self.remove(name)
            raise FileNotFoundError(str(error)) from error
        except UnusableFile:
            self.remove(name)
            raise
        with contextlib.suppress(OSError):
            block_file.note_use(path)  # for every engine that shares the folder
        return size_bytes

    def keep(self, kept: KeptFile) -> None:
        """Tell the other engines that these files are kept; see KeptFiles. Raises OSError.

        Nothing is kept that was computed from a document that has been forgotten since.
        """
        try:
            self._require_remembered(kept.documents)
            self.kept.write(kept)
            self._require_remembered(kept.documents)
        except DocumentForgotten:
            self.kept.remove(self.kept.drop(kept.name))

    def give_up(self, name: str) -> None:
        """Remove a block's file to make room, unless somebody keeps it."""
        self.kept.refresh()
        if not self.kept.protects(self._home.name, name):
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a block's file. Nothing happens if there is none."""
        self._names.get(name[:2], set()).discard(name)
        self._remove_file(self._path(name))

    def close(self) -> None:
        """Give up the claim to the quota. The files stay."""
        self._claim.close()

    def forbids(self, documents: Sequence[str]) -> bool:
        """Return whether blocks computed from documents with these marks are to be dropped."""
        return self._tombstones.forbid(documents)

    def _require_remembered(self, documents: Sequence[str]) -> None:
        if self.forbids(documents):
            raise DocumentForgotten("a document was forgotten that the block was computed from")

    def _remove_file(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            size_bytes = path.lstat().st_size
            if not block_file.is_regular(path):
                return
            path.unlink()
            with self._lock:
                self.used_bytes = max(0, self.used_bytes - size_bytes)

    # -- room --------------------------------------------------------------------------------------

    def _make_room(self, needed: int, is_known: Callable[[str], bool]) -> None:
        """Remove files that the tree does not know until there is room for `needed` bytes.

        Counting the folder takes long, so this counts only from time to time, and remembers the strays.
        Raises FolderFull if there is no room even then.
        """
        if self._uncounted_bytes + needed > self.quota_bytes // RECOUNTS_PER_QUOTA:
            self._count(is_known)
        self._remove_strays(needed, is_known)
        if self._is_over(needed) and self._is_count_old():
            self._count(is_known)
            self._remove_strays(needed, is_known)
        if self._is_over(needed):
            raise FolderFull(
                f"{self.folder} is full: {self.used_bytes} of {self.quota_bytes} bytes"
            )

    def _is_over(self, needed: int) -> bool:
        return self.used_bytes + needed > self.quota_bytes and (
            self.used_bytes + needed > self._claim.largest()
        )

    def _is_count_old(self) -> bool:
        return self._uncounted_bytes > 0 or time.monotonic() - self._counted_s > LONGEST_COUNT_S

    def _count(self, is_known: Callable[[str], bool]) -> None:
        """Count the folder's bytes, and find the files that the tree does not know and nobody keeps."""
        self.kept.refresh()
        files = sorted(_list_files(self.folder))
        with self._lock:
            self.used_bytes = sum(file.size_bytes for file in files)
            self._uncounted_bytes = 0
        self._counted_s = time.monotonic()
        self._strays = deque(file for file in files if self._is_stray(file.path, is_known))

    def _is_stray(self, path: Path, is_known: Callable[[str], bool]) -> bool:
        home, name = path.parent.parent, path.stem
        if self.kept.protects(home.name, name):
            return False
        return home != self._home or not is_known(name)

    def _remove_strays(self, needed: int, is_known: Callable[[str], bool]) -> None:
        if self._is_over(needed):
            self.kept.refresh()
        while self._strays and self._is_over(needed):
            self._remove_stray(self._strays.popleft(), is_known)

    def _remove_stray(self, file: _StoredFile, is_known: Callable[[str], bool]) -> None:
        """Remove a file unless somebody has used it since the count."""
        path = file.path
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime <= file.used_s and self._is_stray(path, is_known):
                if path.parent.parent == self._home:  # other origins have files of the same names
                    self._names.get(path.stem[:2], set()).discard(path.stem)
                self._remove_file(path)

    def _path(self, name: str) -> Path:
        return self._home / name[:2] / f"{name}{SUFFIX}"


class ForgottenFiles(NamedTuple):
    """What was removed: how many files, and the keys of the tenants with these marks."""

    files: int
    keys: Sequence[str]


def forget_documents(
    folder: Path, document_ids: Iterable[str], keys: KeyRing | None = None
) -> ForgottenFiles:
    """Remove every block file computed from one of the documents. Any process.

    Leave tombstones first: then no engine adds a file that this misses. This reads the header of each
    file in the folder. A file with an unusable header, or whose marks were made with other keys, is
    removed as well, because it may have been computed from one of them.
    """
    naming = keys.naming if keys else PLAIN
    return forget_marks(folder, {naming.mark(document_id) for document_id in document_ids}, keys)


def forget_marks(
    folder: Path,
    marks: Set[str],
    keys: KeyRing | None = None,
    stamps: Mapping[str, str] = NO_STAMPS,
) -> ForgottenFiles:
    """Do what `forget_documents` does, for documents of which only the marks are known.

    The keys of tenants among them are thrown away. stamps: as in KeyFiles.throw_away.
    """
    forget_kept(folder, marks)
    removed = 0
    for path in (file.path for file in _list_files(folder)):
        try:
            is_concerned = not marks.isdisjoint(block_file.read_document_marks(path, keys))
        except UnusableFile:
            is_concerned = True
        except OSError:
            continue
        if is_concerned:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
    return ForgottenFiles(removed, [] if keys is None else keys.throw_away(marks, stamps))


def _remove_plain(folder: Path) -> None:
    """Remove the block files that are not encrypted, as their names tell."""
    for file in _list_files(folder):
        if not is_encrypted(file.path.stem):
            with contextlib.suppress(OSError):
                file.path.unlink()


def _list_names(part: Path) -> set[str]:
    with os.scandir(part) as entries:
        return {
            entry.name.removesuffix(SUFFIX)
            for entry in entries
            if entry.name.endswith(SUFFIX) and entry.is_file(follow_symlinks=False)
        }


def _make_private(home: Path) -> None:
    """Close a folder of ours that an earlier version left open to others."""
    with contextlib.suppress(OSError):
        if stat.S_IMODE(home.stat().st_mode) & 0o077:
            home.chmod(0o700)


def _list_files(folder: Path) -> Iterator[_StoredFile]:
    """Yield every block file in the folder, of any origin, that a disk cache made.

    Its place, its name and its kind tell that; links to other places are not followed. Every start waits
    for this, so each file costs one look.
    """
    for home in _scan(folder):
        if not OUR_HOME.fullmatch(home.name) or not home.is_dir(follow_symlinks=False):
            continue
        for part in _scan(home):
            if len(part.name) != 2 or not part.is_dir(follow_symlinks=False):
                continue
            for entry in _scan(part):
                name, stem = entry.name, entry.name.removesuffix(SUFFIX)
                if name == stem or stem[:2] != part.name or not OUR_NAME.fullmatch(stem):
                    continue
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield _StoredFile(found.st_mtime, found.st_size, entry.path)


def _scan(folder: str | Path | os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """Yield what a folder holds; nothing if it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from entries


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
