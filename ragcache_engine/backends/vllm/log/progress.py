"""The one line that tells the user that a model is being loaded."""

from __future__ import annotations

import sys
from pathlib import Path


def announce_loading(model: str, log: Path) -> None:
    """Print the line to standard error.

    model: a hub id, or the path of a folder, of which the line has the name alone.
    """
    if sys.stderr is not None:  # a program without a terminal may have none
        name = Path(model).name if Path(model).is_dir() else model
        print(f"RAGCache: vLLM loads {name}; its log: {log}", file=sys.stderr, flush=True)
