"""Writes folders and files as a whole; `cache_home` says where those stand that are kept between runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ragcache_engine.cache_home import cache_home

__all__ = ["cache_home", "create_folder", "replace_folder", "write_whole"]


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


def write_whole(path: Path, text: str) -> None:
    """Write a file as a whole: a reader sees the old one or the new one. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


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
