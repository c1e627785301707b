"""The record of a run: everything that its report needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from comparing.corpora import TraceSummary
from comparing.figures import Differing
from comparing.plays import Seen
from comparing.systems import SYSTEMS, Sizes, System


@dataclass(slots=True)
class RunRecord:
    """All measurements of a run, with its machine and its settings.

    command: the command line that runs it again. token_bytes: bytes of one token's key-value tensors;
      None if unknown.
    left_out: lines about what the plan does not measure. float32: answers that differ in float32, by
      system.
    studies: the results of further studies by name, as JSON. systems: the systems by key, to name them.
    """

    title: str
    command: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    sizes: Sizes
    token_bytes: int | None
    seen: Seen
    abouts: Sequence[TraceSummary]
    seconds: float = 0.0
    left_out: Sequence[str] = ()
    float32: Sequence[Differing] = ()
    load_average: tuple[float, float, float] = (0.0, 0.0, 0.0)
    studies: dict[str, Any] = field(default_factory=dict)
    systems: Mapping[str, System] = field(default_factory=lambda: dict(SYSTEMS))

    def name_of(self, key: str) -> str:
        """Return the name of a system in tables."""
        return self.systems[key].name
