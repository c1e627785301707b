"""Where converted models and indexes are kept between runs, and how they are put there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """$RAGCACHE_HOME, else $XDG_CACHE_HOME/ragcache, else ~/.cache/ragcache. Made by its users."""
    if home := environment.get("RAGCACHE_HOME"):
        return Path(home).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ragcache"


@contextmanager
def created(target: Path) -> Iterator[Path]:
    """Write a folder beside `target`; it becomes `target` when the block ends well.

    A reader sees the whole folder or none. If another process made one meanwhile, that one stays,
    for somebody may be reading it. Raises OSError if the folder cannot be written.
    """
    with _written_beside(target) as written:
        yield written
        _rename_unless_there(written, target)


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """As `created`, but a folder there already is replaced. If the block raises, it stays."""
    with _written_beside(target) as written:
        yield written
        with _written_beside(target) as aside:
            # A folder cannot be renamed onto a full one, so the old one steps aside first.
            with suppress(FileNotFoundError):
                target.rename(aside / target.name)
            _rename_unless_there(written, target)


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
