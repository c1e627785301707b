"""Tells all engines that share a folder which documents were forgotten, and when.

    <folder>/forgotten/<mark of the document>

Removing files is not enough: another engine may be writing one at that moment, or still hold the document
in memory. So whoever forgets leaves a tombstone first. Every engine looks for new ones from time to time,
and before and after each write.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

FOLDER = "forgotten"
KEPT_S = 30 * 86_400.0
"""Seconds after which a tombstone is removed: no engine leaves a write unfinished for so long."""

TIDIED_EVERY_S = 3600.0
"""So seldom old tombstones are looked for while an engine runs."""


class Tombstones:
    """The tombstones of one folder, and which of them this engine has acted upon.

    An engine takes all that stand at its start as acted upon, since it holds nothing yet. One thread may
    ask while another notes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._acted: dict[str, int] = {}  # by mark: when the document was forgotten
        self._told: dict[str, int] = {}
        self._looked_at = 0
        self._tidied_s = time.monotonic()
        _remove_old(self._folder)
        self._acted = self._read()

    def tidy(self) -> None:
        """Remove what is older than KEPT_S, from the folder as from memory, once in TIDIED_EVERY_S."""
        if time.monotonic() - self._tidied_s < TIDIED_EVERY_S:
            return
        self._tidied_s = time.monotonic()
        _remove_old(self._folder)
        oldest = time.time_ns() - int(KEPT_S * 1e9)
        self._acted = {mark: at for mark, at in self._acted.items() if at > oldest}
        self._told = {mark: at for mark, at in self._told.items() if at > oldest}

    def find_new(self) -> dict[str, int]:
        """Return marks, with their times, that this engine has not acted upon yet. Each is told once.

        Told again before it is acted upon, it would drop what the engine has computed anew since.
        """
        try:
            changed = os.stat(self._folder).st_mtime_ns
        except OSError:
            return {}
        if changed == self._looked_at and changed < time.time_ns() - 2_000_000_000:
            return {}  # a clock too coarse cannot hide a change that is younger
        self._looked_at = changed
        new = {
            mark: at
            for mark, at in self._read().items()
            if at not in (self._acted.get(mark), self._told.get(mark))
        }
        self._told.update(new)
        return new

    def note(self, times: Mapping[str, int]) -> None:
        """Note that this engine holds nothing of these documents that is older than their tombstones."""
        self._acted.update(times)
        for mark, at in times.items():
            if self._told.get(mark, at) != at:
                # Another tombstone was told of in between: it is told again, as it has to be acted upon.
                del self._told[mark]
                self._looked_at = 0

    def forbid(self, marks: Sequence[str]) -> bool:
        """Return whether tensors computed from these documents are to be dropped."""
        return any(at != self._acted.get(mark) for mark, at in self._find(marks))

    def are_younger(self, marks: Iterable[str], than_ns: int) -> bool:
        """Return whether one of these documents was forgotten later, whoever has acted upon that."""
        return any(at > than_ns for _, at in self._find(marks))

    def _find(self, marks: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Yield those of the marks that have a tombstone, with its time."""
        for mark in marks:
            with contextlib.suppress(OSError):
                yield mark, os.stat(self._folder / mark).st_mtime_ns

    def _read(self) -> dict[str, int]:
        found = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
        return found


def leave_tombstones(folder: Path, marks: Iterable[str]) -> dict[str, int]:
    """Leave a tombstone for each mark; return their times. Raises OSError."""
    place = folder / FOLDER
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    times = {}
    for mark in marks:
        # A new file each time: replacing it changes the folder's own time, by which engines notice.
        written = folder / f"{FOLDER}.{mark}.{os.urandom(4).hex()}"
        os.close(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode=0o600))
        now_ns = time.time_ns()
        os.utime(written, ns=(now_ns, now_ns))  # some filesystems count in seconds by themselves
        times[mark] = os.stat(written).st_mtime_ns
        os.replace(written, place / mark)
    return times


def clear_tombstones(folder: Path) -> None:
    """Remove all tombstones: their names tell documents to those who can make the same digests."""
    _remove_old(folder / FOLDER, kept_s=0.0)


def _remove_old(place: Path, kept_s: float = KEPT_S) -> None:
    oldest = time.time() - kept_s
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path)
