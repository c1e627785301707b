"""Sets the clock of each Python process that finds this folder an hour ahead, with the times of files.

`datetime`, which only logs read here, stays. Programs that fake the system's clocks make waits longer,
too.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

AHEAD_S = 3600
AHEAD_NS = AHEAD_S * 10**9
_time, _time_ns = time.time, time.time_ns
_scandir, _utime = os.scandir, os.utime


def _ahead(found: os.stat_result) -> os.stat_result:
    """Return what is known of a file, with its times an hour later."""
    names = [name for name in dir(found) if name.startswith("st_") and name.endswith("time_ns")]
    later = {name: getattr(found, name) + AHEAD_NS for name in names}
    later |= {name.removesuffix("_ns"): value / 10**9 for name, value in later.items()}
    fields, (_, (_, extra)) = list(found), found.__reduce__()  # the ten of old, then those by name
    return os.stat_result(fields, {**extra, **later})


class _Entry:
    """An entry of a folder, as os.scandir gives it."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self._entry.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _ahead(self._entry.stat(follow_symlinks=follow_symlinks))


class _Entries:
    """What os.scandir returns."""

    def __init__(self, entries: Any) -> None:
        self._entries = entries

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return _Entry(next(self._entries))

    def close(self) -> None:
        self._entries.close()


def _set_back(*args: Any, ns: tuple[int, int] | None = None, **more: Any) -> None:
    """Set a file's times. ns: by this clock."""
    if ns is not None:
        more["ns"] = tuple(at - AHEAD_NS for at in ns)
    _utime(*args, **more)


def _wrap(stat: Any) -> Any:
    return lambda *args, **more: _ahead(stat(*args, **more))


time.time = lambda: _time() + AHEAD_S
time.time_ns = lambda: _time_ns() + AHEAD_NS
os.stat, os.lstat, os.fstat = _wrap(os.stat), _wrap(os.lstat), _wrap(os.fstat)
os.scandir = lambda path=".": _Entries(_scandir(path))
os.utime = _set_back
