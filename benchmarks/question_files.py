"""Reads the files of the shared question sets; docs/benchmarks.md says what they hold."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from ragcache_cli.errors import BadTrace

DATA_VARIABLE = "RAGCACHE_DATA"
DATA = Path(os.environ.get(DATA_VARIABLE) or Path(__file__).parents[2] / "shared" / "data")
"""The folder of the sets: $RAGCACHE_DATA, or shared/data beside the project."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines. Raises BadTrace."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise BadTrace(f"{path} cannot be read: {error}") from error
