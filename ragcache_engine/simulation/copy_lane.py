"""A connection that copies one thing after another: when each copy ends."""

from __future__ import annotations

HOST_BYTES_PER_S = 4e9
"""Between device and host, each way: what the cache manager expects before its first copy."""

DISK_BYTES_PER_S = 1e9
"""Between host and disk, each way: what the cache manager expects before its first copy."""

ROUNDING_S = 1e-9
"""Times this close count as equal: a clock that waits until a time may fall short of it by rounding."""


class CopyLane:
    """Copies in the order asked, at a fixed bandwidth and without any delay of its own."""

    def __init__(self, bytes_per_s: float) -> None:
        if bytes_per_s <= 0:
            raise ValueError(f"a copy makes some progress, got {bytes_per_s} bytes a second")
        self._bytes_per_s = bytes_per_s
        self._busy_until_s = 0.0

    def copy_s(self, size_bytes: int) -> float:
        """How long copying so many bytes takes."""
        return size_bytes / self._bytes_per_s

    def begin(self, size_bytes: int, now_s: float) -> float:
        """Ask for a copy; returns the time at which it ends."""
        self._busy_until_s = max(now_s, self._busy_until_s) + self.copy_s(size_bytes)
        return self._busy_until_s


def has_passed(at_s: float, now_s: float) -> bool:
    return at_s <= now_s + ROUNDING_S
