"""The values that every check and study of a run needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comparing.corpora import Corpora
from comparing.systems import Sizes

Say = Callable[[str], None]
"""Prints a line of progress."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """main: the name of the question set with most requests. log: the file for the systems' output."""

    corpora: Corpora
    main: str
    sizes: Sizes
    log: Path
    seed: int
    say: Say
