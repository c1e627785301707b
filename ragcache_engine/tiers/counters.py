"""Counts what the tiers have done, in plain numbers that cross process boundaries."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Any

SCHEDULING_BUCKETS_S = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Upper bounds of the buckets, in seconds; one more bucket takes all times above the last bound."""

_TIERS = ("device", "host", "disk")


class DiskState(StrEnum):
    """What the disk tier can do now."""

    NONE = "none"  # no disk tier was asked for
    ON = "on"
    STALLED = "stalled"  # it does not answer, and is asked for nothing until it does
    READ_ONLY = "read only"  # too many writes in a row have failed
    OFF = "off"  # its folder cannot be used


@dataclass(frozen=True, slots=True, eq=False)
class BlocksByTier(Mapping[str, int]):
    """Numbers of blocks by the name of their tier, read-only.

    >>> BlocksByTier(device=3)["device"]
    3
    """

    device: int = 0
    host: int = 0
    disk: int = 0

    def __getitem__(self, tier: str) -> int:
        if tier not in _TIERS:
            raise KeyError(tier)
        blocks: int = getattr(self, tier)
        return blocks

    def __iter__(self) -> Iterator[str]:
        return iter(_TIERS)

    def __len__(self) -> int:
        return len(_TIERS)

    def __hash__(self) -> int:
        return hash((self.device, self.host, self.disk))


@dataclass(frozen=True, slots=True)
class TierCounters:
    """Counts of what the tiers of an engine have done so far: a snapshot that does not change.

        >>> counters = TierCounters(evicted=BlocksByTier(host=2))
        >>> counters.evicted["host"], counters.loaded_bytes
        (2, 0)

    ended: requests that ended, completed or not.
    device_tokens, host_tokens, disk_tokens, computed_tokens: prompt tokens of finished requests, each
      counted where its tensors came from.
    evicted: blocks evicted, by tier.
    refused: blocks that the host tier did not take, because it holds more valuable ones.
    stored_bytes, loaded_bytes: copied from the device to the host, and back.
    written_bytes, read_bytes: copied from the host to the disk, and back.
    missing, damaged: blocks whose file on disk was gone, or unusable and so removed.
    unwritten: blocks that the disk did not take.
    recomputed_blocks: cached blocks that were computed again, as that was quicker than loading them.
    donor_tokens: tokens computed for donors, from which other prompts borrow.
    borrowed_tokens: prompt tokens of finished requests that were borrowed from another context.
    recomputed_tokens: tokens of borrowed documents that were computed anew in their new place; they
      count in computed_tokens.
    forgotten: documents dropped on request.
    shared_tokens: those of disk_tokens that came from the shared store. shared_read_bytes,
      shared_written_bytes: copied from the store to the host, and back. unshared: blocks that it did not
      take.
    scheduling: requests by how long our part of their scheduling took: one number for each bound in
      SCHEDULING_BUCKETS_S, and one for those above the last bound.
    scheduling_s: seconds that this took in all.
    held, capacity: blocks that each tier holds, and may hold, as of the request that ended last. kept:
      those that are kept from eviction there, whether the tier has them yet or not.
    disk: what the disk tier could do then.
    """

    ended: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    computed_tokens: int = 0
    evicted: Mapping[str, int] = field(default_factory=BlocksByTier)
    refused: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    missing: int = 0
    damaged: int = 0
    unwritten: int = 0
    recomputed_blocks: int = 0
    donor_tokens: int = 0
    borrowed_tokens: int = 0
    recomputed_tokens: int = 0
    forgotten: int = 0
    shared_tokens: int = 0
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    unshared: int = 0
    scheduling: tuple[int, ...] = (0,) * (len(SCHEDULING_BUCKETS_S) + 1)
    scheduling_s: float = 0.0
    held: Mapping[str, int] = field(default_factory=BlocksByTier)
    capacity: Mapping[str, int] = field(default_factory=BlocksByTier)
    kept: Mapping[str, int] = field(default_factory=BlocksByTier)
    disk: DiskState = DiskState.NONE


@dataclass(slots=True)
class Counters:
    """The counts while they grow; TierCounters says what each of them means."""

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
    recomputed_blocks: int = 0
    donor_tokens: int = 0
    borrowed_tokens: int = 0
    recomputed_tokens: int = 0
    forgotten: int = 0
    shared_tokens: int = 0
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    unshared: int = 0
    scheduling: list[int] = field(default_factory=lambda: [0] * (len(SCHEDULING_BUCKETS_S) + 1))
    scheduling_s: float = 0.0
    held: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIERS, 0))
    capacity: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIERS, 0))
    kept: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIERS, 0))
    disk: DiskState = DiskState.NONE

    def add_scheduling(self, seconds: float) -> None:
        """Count one request whose scheduling took this many seconds in all."""
        self.scheduling[bisect_left(SCHEDULING_BUCKETS_S, seconds)] += 1
        self.scheduling_s += seconds

    def snapshot(self) -> TierCounters:
        """Return the counts as of now, as values that do not change."""
        numbers = self.as_dict()
        for by_tier in _BY_TIER:
            numbers[by_tier] = BlocksByTier(**numbers[by_tier])
        numbers["scheduling"] = tuple(numbers["scheduling"])
        return TierCounters(**numbers)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain numbers, lists and dicts, to send to another process."""
        # By hand: dataclasses.asdict takes a hundred times as long, and this is sent with every answer.
        numbers = dict(zip(_NAMES, _VALUES(self), strict=True))
        for by_tier in _BY_TIER:
            numbers[by_tier] = dict(numbers[by_tier])
        numbers["scheduling"] = list(self.scheduling)
        return numbers

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> Counters:
        """Make counters from what as_dict() returned."""
        return cls(**{**numbers, "disk": DiskState(numbers["disk"])})


_BY_TIER = ("evicted", "held", "capacity", "kept")
_NAMES = Counters.__slots__
_VALUES = attrgetter(*_NAMES)
