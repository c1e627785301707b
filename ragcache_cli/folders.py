"""Writes folders and files as a whole; `cache_home` says where those stand that are kept between runs.

elsewhere, wherever a function takes it: how the user names another place, as in OTHER_OUTPUT.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ragcache_cli.errors import CannotWrite
from ragcache_engine.cache_home import cache_home

__all__ = [
    "OTHER_HOME",
    "OTHER_OUTPUT",
    "cache_home",
    "create_folder",
    "make_folder",
    "naming",
    "replace_folder",
    "whole_file",
    "write_whole",
]

OTHER_HOME = "set RAGCACHE_HOME to another folder"
OTHER_OUTPUT = "choose with --output"


@contextmanager
def create_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder to write into; it becomes `target` when the block ends without an error.

    A reader sees the whole folder or none. If another process made `target` meanwhile, that one stays,
    as it may be in use. Raises OSError if the folder cannot be written.
    """
    with _written_beside(target) as written:
        yield written
        _rename_unless_there(written, target)


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Do as `create_folder`, but replace an existing folder. If the block raises, the old one stays."""
    with _written_beside(target) as written:
        yield written
        with _written_beside(target) as aside:
            # A folder cannot be renamed onto one with files in it, so the old one is moved away first.
            with suppress(FileNotFoundError):
                target.rename(aside / target.name)
            _rename_unless_there(written, target)


def make_folder(folder: Path, elsewhere: str, *, is_private: bool = False) -> None:
    """Make a folder before the work, because an error after minutes of it would lose the result.

    is_private: whether a new folder is for this user alone. Raises CannotWrite.
    """
    with naming(folder, elsewhere):
        folder.mkdir(0o700 if is_private else 0o777, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


@contextmanager
def whole_file(path: Path, elsewhere: str) -> Iterator[Path]:
    """Yield a file beside `path` to write; it becomes `path` when the block ends without an error.

    A reader sees the old file or the new one. Raises CannotWrite.
    """
    beside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        with naming(path, elsewhere):
            yield beside
            beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()


def write_whole(path: Path, text: str, elsewhere: str) -> None:
    """Write a text as `whole_file` does. Raises CannotWrite."""
    with whole_file(path, elsewhere) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def naming(path: Path, elsewhere: str) -> Iterator[None]:
    """Turn an OSError in the block into CannotWrite, which names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise CannotWrite(f"{path} cannot be written ({reason}); {elsewhere}") from error


@contextmanager
def _written_beside(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rename_unless_there(written: Path, target: Path) -> None:
    written.chmod(0o755)  # mkdtemp makes it private; a cache is as readable as its parent
    try:
        written.rename(target)
    except OSError:
        if not target.is_dir():
            raise
