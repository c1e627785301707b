"""What every check and study of a run works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ragcache_cli.bench.corpora import Corpora
from ragcache_cli.bench.systems import Sizes

Say = Callable[[str], None]
"""Prints a line of progress."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """main: the name of the question set that is asked most. log: for what the systems print."""

    corpora: Corpora
    main: str
    sizes: Sizes
    log: Path
    seed: int
    say: Say
