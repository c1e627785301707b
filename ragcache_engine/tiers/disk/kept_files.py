"""Tells all engines that share a folder which files somebody keeps there, and how long.

    <folder>/kept/<home>-<name of a set of documents>-<engine>        JSON: until, documents, files

Each of these stands for documents that one engine keeps, and outlives the engine: what is kept survives
restarts. No engine removes the files of such documents to make room for others. Damaged ones go, and
those of forgotten documents. An engine changes its own entries, and removes those of engines that ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FOLDER = "kept"
OUR_NAME = re.compile("([0-9a-f]{16})-([0-9a-f]{16})-([0-9a-f]{16})")
LARGEST_BYTES = 64 << 20
"""No engine writes a larger one."""

UNFINISHED = ".writing"
ABANDONED_AFTER_S = 600.0
"""The age in seconds from which an unfinished file counts as left behind."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """The files of documents that are kept together.

    name: of the documents and their tenant, which tells nothing. until_s: in seconds since 1970; None:
    for ever. documents: marks of all documents that the files were computed from. files: their names.
    """

    name: str
    until_s: float | None
    documents: Sequence[str]
    files: Sequence[str]


class _Entry(NamedTuple):
    """What an engine keeps. changed_ns: of its file; 0 for one that this engine writes."""

    home: str
    engine: str
    kept: KeptFile
    changed_ns: int = 0


class KeptFiles:
    """What is kept in a folder, as of the latest `refresh`. Any thread may call its methods.

    home: the name of the folder with this engine's own files. engine: its name among all that use the
      folder. is_alive: tells whether the engine of a name is one that runs.
    """

    def __init__(
        self,
        folder: Path,
        home: str,
        engine: str,
        is_alive: Callable[[str], bool] = lambda engine: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder / FOLDER
        self._home, self._engine = home, engine
        self._is_alive = is_alive
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._sets: dict[str, dict[str, _Entry]] = {}  # the same ones, by the name of the set
        # Of each file, how many entries keep it: this engine's, and others'.
        self._own: Counter[tuple[str, str]] = Counter()
        self._others: Counter[tuple[str, str]] = Counter()
        self._of_others = 0  # how many files others alone keep
        self._released: set[str] = set()  # sets of others' that `remove` has not looked at yet
        self._looked_at = 0
        self._next_end_s: float | None = None
        self.refresh()
        self._remove_dead()

    # -- this engine's entries ---------------------------------------------------------------------

    def note(self, kept: KeptFile) -> bool:
        """Keep files from now on; return whether that is news, which `write` has to tell the others."""
        with self._lock:
            name = self._place(kept.name)
            known = self._entries.get(name)
            if known is not None and known.kept == kept:
                return False
            self._put(name, _Entry(self._home, self._engine, kept))
            return True

    def write(self, kept: KeptFile) -> None:
        """Tell the other engines what was noted. Raises OSError.

        The entries that earlier processes had for the set go.
        """
        with self._lock:
            if self._entries.get(self._place(kept.name)) is None:
                return  # released meanwhile
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / self._place(kept.name)
        written = path.with_name(f"{path.name}.{os.urandom(4).hex()}{UNFINISHED}")
        content = {
            "until_s": kept.until_s,
            "documents": list(kept.documents),
            "files": list(kept.files),
        }
        try:
            with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(written, path)
        finally:
            written.unlink(missing_ok=True)
        with self._lock:
            of_set = self._of_set(kept.name)
        for name, entry in of_set:
            is_earlier = entry.home == self._home and entry.engine != self._engine
            if is_earlier and not self._is_alive(entry.engine):
                self._remove(name)

    def drop(self, name: str) -> list[str]:
        """Keep the files of a set no longer; return the entries that `remove` has to look at for that.

        Asks no file system anything: which engines run is for `remove` to find out.
        """
        with self._lock:
            of_set = self._of_set(name)
            for one, entry in of_set:
                if entry.engine == self._engine:
                    self._pop(one)
                else:
                    self._released.add(name)
            return [one for one, _ in of_set]

    def remove(self, entries: Iterable[str]) -> None:
        """Remove entries that were dropped, and not noted again since. Raises OSError.

        What another engine that runs keeps of a set stays kept; what an earlier process kept does not.
        """
        for name in entries:
            _, of_set, engine = name.split("-")
            is_ours = engine == self._engine
            is_gone = is_ours or not self._is_alive(engine)
            with self._lock:
                self._released.discard(of_set)
                if is_gone and not is_ours:
                    self._pop(name)
            if is_gone:
                self._unlink(name)

    # -- asking ------------------------------------------------------------------------------------

    def protects(self, home: str, file: str) -> bool:
        """Return whether somebody keeps a file of this name in this home."""
        key = home, file
        return key in self._own or key in self._others

    def count_of_others(self, but: Iterable[str] = ()) -> int:
        """Return how many files are kept that this engine does not keep itself.

        but: names of sets that this engine is about to keep; their files count as its own.
        """
        with self._lock:
            soon = {
                (entry.home, file)
                for name in (*but, *self._released)
                for _, entry in self._of_set(name)
                if entry.home == self._home
                for file in entry.kept.files
            }
            return self._of_others - sum(map(self._is_of_others, soon))

    def refresh(self) -> None:
        """Look for what other engines keep, and remove what was kept until now. For one thread."""
        if self._next_end_s is not None and self._next_end_s <= self._clock():
            self._end_those_due()
        try:
            changed = os.stat(self._folder).st_mtime_ns
            # A clock too coarse cannot hide a change that is older than that.
            is_settled = changed < time.time_ns() - 2_000_000_000
            if (changed != self._looked_at or not is_settled) and self._look():
                self._looked_at = changed
        except FileNotFoundError:
            self._drop_all_but(())
        except OSError:
            return  # what was known holds

    # -- inside ------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Read entries that are new or changed; return whether all could be read. Raises OSError.

        Files are read without the lock: the scheduler never waits for them.
        """
        is_whole, present = True, set()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                found = OUR_NAME.fullmatch(entry.name)
                if not found or not entry.is_file(follow_symlinks=False):
                    continue
                present.add(entry.name)
                known = self._entries.get(entry.name)
                if found[3] == self._engine:
                    continue
                try:
                    changed_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                    if known is not None and known.changed_ns == changed_ns:
                        continue
                    kept = _read(Path(entry.path), found[2])
                except OSError:
                    is_whole = False
                    continue
                if kept is not None:
                    with self._lock:
                        self._put(entry.name, _Entry(found[1], found[3], kept, changed_ns))
        self._drop_all_but(present)
        return is_whole

    def _drop_all_but(self, present: Container[str]) -> None:
        """Drop other engines' entries that are not among these."""
        with self._lock:
            for name, entry in list(self._entries.items()):
                if entry.changed_ns and name not in present:
                    self._pop(name)

    def _end_those_due(self) -> None:
        now = self._clock()
        with self._lock:
            ends = {name: entry.kept.until_s for name, entry in self._entries.items()}
            due = [name for name, until_s in ends.items() if until_s is not None and until_s <= now]
            for name in due:
                self._pop(name)
            left = [until_s for until_s in ends.values() if until_s is not None and until_s > now]
            self._next_end_s = min(left, default=None)
        for name in due:
            with contextlib.suppress(OSError):
                self._unlink(name)

    def _remove_dead(self) -> None:
        """Remove entries of engines that have ended if none of their files is there any more."""
        root = self._folder.parent
        for name, entry in list(self._entries.items()):
            if not self._is_alive(entry.engine) and not any(
                (root / entry.home / file[:2] / f"{file}.kv").exists() for file in entry.kept.files
            ):
                self._remove(name)
        oldest = time.time() - ABANDONED_AFTER_S
        for path in _list(self._folder):
            with contextlib.suppress(OSError):
                if path.name.endswith(UNFINISHED) and path.stat().st_mtime < oldest:
                    path.unlink()

    def _place(self, name: str) -> str:
        return f"{self._home}-{name}-{self._engine}"

    def _of_set(self, name: str) -> list[tuple[str, _Entry]]:
        return list(self._sets.get(name, {}).items())

    def _remove(self, name: str) -> None:
        with self._lock:
            self._pop(name)
        with contextlib.suppress(OSError):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        """Remove an entry's file, unless it was noted again since. Raises OSError."""
        if name not in self._entries:
            (self._folder / name).unlink(missing_ok=True)

    def _put(self, name: str, entry: _Entry) -> None:
        self._pop(name)
        self._entries[name] = entry
        self._sets.setdefault(entry.kept.name, {})[name] = entry
        self._count(entry, 1)
        until_s = entry.kept.until_s
        if until_s is not None and (self._next_end_s is None or until_s < self._next_end_s):
            self._next_end_s = until_s

    def _pop(self, name: str) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            of_set = self._sets[entry.kept.name]
            del of_set[name]
            if not of_set:
                del self._sets[entry.kept.name]
            self._count(entry, -1)

    def _count(self, entry: _Entry, more: int) -> None:
        counts = self._own if entry.engine == self._engine else self._others
        for file in entry.kept.files:
            key = entry.home, file
            before = self._is_of_others(key)
            counts[key] += more
            if not counts[key]:
                del counts[key]
            self._of_others += self._is_of_others(key) - before

    def _is_of_others(self, key: tuple[str, str]) -> bool:
        return key in self._others and key not in self._own


def forget_kept(folder: Path, marks: Iterable[str]) -> None:
    """Keep nothing any more that was computed from documents with these marks. Any process."""
    doomed = set(marks)
    for path in _list(folder / FOLDER):
        if found := OUR_NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):
                kept = _read(path, found[2])
                if kept is None or not doomed.isdisjoint(kept.documents):
                    path.unlink()


def clear_kept(folder: Path) -> None:
    """Remove all entries: their names and marks were made with another secret."""
    for path in _list(folder / FOLDER):
        if OUR_NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def _list(place: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        return [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
    return []


def _read(path: Path, name: str) -> KeptFile | None:
    """Return what an entry keeps; None for what no engine has written. Raises OSError."""
    if path.stat().st_size > LARGEST_BYTES:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        said = json.loads(path.read_bytes())
        until_s, lists = said["until_s"], (said["documents"], said["files"])
        are_texts = all(
            isinstance(each, list) and all(isinstance(one, str) for one in each) for each in lists
        )
        is_time = until_s is None or (isinstance(until_s, (int, float)) and math.isfinite(until_s))
        if are_texts and is_time:
            return KeptFile(name, until_s, *map(tuple, lists))
    return None
