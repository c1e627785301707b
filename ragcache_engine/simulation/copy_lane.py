"""A connection that makes one copy after another; it computes when each copy ends."""

from __future__ import annotations

HOST_BYTES_PER_S = 4e9
"""Between device and host, in each direction, unless it is said."""

DISK_BYTES_PER_S = 1e9
"""Between host and disk, in each direction, unless it is said."""

ROUNDING_S = 1e-9
"""Seconds within which two times count as equal, because rounding may leave the clock a little early."""


class CopyLane:
    """Makes copies in the order of the calls, at a fixed bandwidth and without other delays."""

    def __init__(self, bytes_per_s: float) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a copy makes some progress, got {bytes_per_s} bytes a second")
        self._bytes_per_s = bytes_per_s
        self._busy_until_s = 0.0

    def copy_s(self, size_bytes: int) -> float:
        """Return how many seconds it takes to copy this many bytes."""
        return size_bytes / self._bytes_per_s

    def begin(self, size_bytes: int, now_s: float) -> float:
        """Add a copy to the lane; return the time at which it ends."""
        self._busy_until_s = max(now_s, self._busy_until_s) + self.copy_s(size_bytes)
        return self._busy_until_s


def has_passed(at_s: float, now_s: float) -> bool:
    return at_s <= now_s + ROUNDING_S
