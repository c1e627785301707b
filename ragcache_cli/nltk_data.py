"""Finds hard links among the data that LlamaIndex reads with nltk to split long documents.

uv links files from its cache into the environment, and nltk refuses to read a file with several links.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def linked_nltk_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return a file that LlamaIndex needs and the installed nltk refuses; None if there is none."""
    folder = nltk_data_folder(environment)
    if folder is None or not _refuses_links():
        return None
    return find_linked_file(folder)


def nltk_data_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder from which LlamaIndex reads; None if LlamaIndex is not installed."""
    if folder := environment.get("NLTK_DATA"):
        return Path(folder)
    return _installed_path("llama-index-core", "llama_index/core/_static/nltk_cache")


def find_linked_file(folder: Path) -> Path | None:
    """Return one file below the folder that has more than one hard link."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return next((path for path in files if path.stat().st_nlink > 1), None)


def _refuses_links() -> bool:
    checks = _installed_path("nltk", "nltk/pathsec.py")
    return checks is not None and checks.is_file()


def _installed_path(package: str, path: str) -> Path | None:
    try:
        return Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        return None
