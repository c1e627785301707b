"""Tells all engines that share a folder which files somebody keeps there, and how long.

    <folder>/kept/<name of a set of documents>        JSON: until, home, documents, files

Each file there stands for documents that an engine keeps, and outlives the engine: what is kept survives
restarts. No engine removes the files of such documents to make room for others. Damaged ones go, and
those of forgotten documents.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "kept"
OUR_NAME = re.compile("[0-9a-f]{16}")
LARGEST_BYTES = 64 << 20
"""No engine writes a larger one."""


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


class KeptFiles:
    """The kept files of a folder, as of the latest `refresh`. For one thread, but `protects` for any.

    home: the name of the folder with this engine's own files. A folder that cannot be read keeps nothing.
    """

    def __init__(self, folder: Path, home: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder / FOLDER
        self._home = home
        self._clock = clock
        self._own: set[str] = set()
        self._looked_at = 0
        self._next_end_s: float | None = None
        self._kept: frozenset[tuple[str, str]] = frozenset()
        self._of_others: frozenset[str] = frozenset()
        self.refresh()

    def keep(self, kept: KeptFile) -> None:
        """Keep files until then, instead of those kept under this name so far. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        content = {**asdict(kept), "home": self._home}
        written = self._folder.parent / f"{FOLDER}.{kept.name}.{os.urandom(4).hex()}"
        with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            json.dump(content, file)
        os.replace(written, self._folder / kept.name)
        self._own.add(kept.name)
        self._look()

    def release(self, name: str) -> None:
        """Keep the files of this name no longer, whichever engine began. Raises OSError."""
        (self._folder / name).unlink(missing_ok=True)
        self._own.discard(name)
        self._look()

    def refresh(self) -> None:
        """Look for what other engines keep, and remove what was kept until now."""
        is_due = self._next_end_s is not None and self._next_end_s <= self._clock()
        with contextlib.suppress(OSError):
            changed = os.stat(self._folder).st_mtime_ns
            # A clock too coarse cannot hide a change that is older than that.
            is_settled = changed < time.time_ns() - 2_000_000_000
            if is_due or changed != self._looked_at or not is_settled:
                self._look()
                self._looked_at = changed

    def protects(self, home: str, file: str) -> bool:
        """Return whether somebody keeps a file of this name in this home. Any thread."""
        return (home, file) in self._kept

    @property
    def of_others(self) -> frozenset[str]:
        """The files in this engine's home that another engine keeps, or a process before this one."""
        return self._of_others

    def _look(self) -> None:
        now, ends = self._clock(), []
        kept: set[tuple[str, str]] = set()
        of_others: set[str] = set()
        for path in _list(self._folder):
            found = _read(path)
            if found is None:
                continue
            home, one = found
            if one.until_s is not None:
                if one.until_s <= now:
                    with contextlib.suppress(OSError):
                        path.unlink()
                    continue
                ends.append(one.until_s)
            kept.update((home, file) for file in one.files)
            if home == self._home and one.name not in self._own:
                of_others.update(one.files)
        self._kept, self._of_others = frozenset(kept), frozenset(of_others)
        self._next_end_s = min(ends, default=None)


def forget_kept(folder: Path, marks: Iterable[str]) -> None:
    """Keep nothing any more that was computed from documents with these marks. Any process."""
    doomed = set(marks)
    for path in _list(folder / FOLDER):
        found = _read(path)
        if found is None or not doomed.isdisjoint(found[1].documents):
            with contextlib.suppress(OSError):
                path.unlink()


def _list(place: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if OUR_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        ]
    return []


def _read(path: Path) -> tuple[str, KeptFile] | None:
    """Return the home and the files of a kept document; None for what no engine has written."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if path.stat().st_size > LARGEST_BYTES:
            return None
        said = json.loads(path.read_bytes())
        until_s, home = said["until_s"], said["home"]
        lists = said["documents"], said["files"]
        are_texts = isinstance(home, str) and all(
            isinstance(each, list) and all(isinstance(one, str) for one in each) for each in lists
        )
        if are_texts and isinstance(until_s, (int, float, type(None))):
            return home, KeptFile(path.name, until_s, *lists)
    return None
