"""What the tiers have done since they were made, as plain numbers that cross a process boundary."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

SCHEDULING_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Upper bounds; one more bucket takes what is above the last."""


@dataclass(slots=True)
class Counters:
    """Tokens are prompt tokens of finished requests, each counted where its tensors came from.

    ended: requests, completed or not. evicted: blocks by tier.
    refused: blocks the host tier did not take, since it holds better ones.
    stored, loaded: between device and host. written, read: between host and disk.
    missing, damaged: blocks the disk was believed to hold. unwritten: blocks it did not take.
    scheduling: requests by how long our part of their scheduling took, in SCHEDULING_BUCKETS_S.
    """

    ended: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    computed_tokens: int = 0
    evicted: dict[str, int] = field(default_factory=lambda: {"device": 0, "host": 0, "disk": 0})
    refused: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    missing: int = 0
    damaged: int = 0
    unwritten: int = 0
    recomputed: int = 0
    forgotten: int = 0
    scheduling: list[int] = field(default_factory=lambda: [0] * (len(SCHEDULING_BUCKETS_S) + 1))
    scheduling_s: float = 0.0

    def add_scheduling(self, seconds: float) -> None:
        """One request's scheduling took so long in all."""
        self.scheduling[bisect_left(SCHEDULING_BUCKETS_S, seconds)] += 1
        self.scheduling_s += seconds

    def as_dict(self) -> dict[str, Any]:
        # By hand: dataclasses.asdict takes a hundred times as long, and this is sent with every answer.
        numbers = dict(zip(_NAMES, _VALUES(self), strict=True))
        numbers["evicted"] = dict(self.evicted)
        numbers["scheduling"] = list(self.scheduling)
        return numbers

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> Counters:
        return cls(**numbers)


_NAMES = Counters.__slots__
_VALUES = attrgetter(*_NAMES)
