"""The record of a run: everything its report is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragcache_cli.bench.corpora import TraceSummary
from ragcache_cli.bench.figures import Differing
from ragcache_cli.bench.plays import Seen
from ragcache_cli.bench.systems import SYSTEMS, Sizes, System


@dataclass(slots=True)
class RunRecord:
    """What was measured, on what, and with which settings.

    command: runs it again. token_bytes: of the KV tensors of a token; None if unknown.
    left_out: what the plan does not measure. float32: answers that differ in float32, by system.
    studies: what further studies found, by their name, as JSON. systems: by key, to name them.
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
        """Return how tables call a system."""
        return self.systems[key].name
