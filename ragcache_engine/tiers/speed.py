"""How fast this machine computes and copies, as measured so far.

The speeds decide between loading a block and computing it.

Units: seconds and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.knowledge.cost import blocks_to_load

LATEST_WEIGHT = 0.2
"""Weight of the latest measurement in a running mean."""

SHORTEST_STEP_TOKENS = 64
"""A step that computes fewer tokens says more about the fixed cost of a step than about the tokens. A
request with fewer tokens left ends in a step that costs what any step costs."""

FIRST_BANDWIDTH = 1e9
"""Bytes a second, before the first copy: fair for a disk."""

FIRST_HOST_BANDWIDTH = 4e9
"""Bytes a second, before the first copy: low for memory."""


class CopyingSpeed:
    """Copies out of a slower tier: how long a copy takes to begin, and how fast it is then."""

    def __init__(self, bandwidth_bytes_per_s: float = FIRST_BANDWIDTH) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.latency_s = 0.0

    def record_copy(self, size_bytes: int, seconds: float) -> None:
        """Take in how long a copy took, once it had begun."""
        if size_bytes > 0 and seconds > 0:
            self.bandwidth_bytes_per_s = _running_mean(
                self.bandwidth_bytes_per_s, size_bytes / seconds
            )

    def record_wait(self, size_bytes: int, seconds: float) -> None:
        """Take in how long a request waited from asking for a copy to computing with it.

        Only where the model had nothing else to do meanwhile.
        """
        self.latency_s = _running_mean(
            self.latency_s, max(0.0, seconds - size_bytes / self.bandwidth_bytes_per_s)
        )


class ComputingSpeed:
    """The cost profile's times, stretched to those measured.

    A profile of this model and machine needs no stretching. The default profile does, and so does a
    machine that computes something else as well.
    """

    def __init__(self, profile: CostProfile) -> None:
        self._profile = profile
        self._stretch: float | None = None

    def record_step(self, cached_tokens: int, computed_tokens: int, seconds: float) -> None:
        """Take in how long a step of the model took that computed prompts."""
        if computed_tokens < SHORTEST_STEP_TOKENS or seconds <= 0:
            return
        expected = self._profile.prefill_s(cached_tokens, computed_tokens)
        if expected > 0:
            seen = seconds / expected
            self._stretch = seen if self._stretch is None else _running_mean(self._stretch, seen)

    def prefill_s(self, cached_tokens: int, computed_tokens: int) -> float:
        """Seconds to compute that many tokens behind the cached ones."""
        return (self._stretch or 1.0) * self._profile.prefill_s(cached_tokens, computed_tokens)

    def blocks_worth_loading(
        self,
        copying: CopyingSpeed,
        *,
        cached_tokens: int,
        computed_tokens: int,
        loadable_blocks: int,
        block_tokens: int,
        block_bytes: int,
        with_latency: bool = True,
    ) -> int:
        """Count how many of the next blocks come sooner by copying than by computing.

        with_latency: whether the model would be idle until the copies begin.
        """
        if loadable_blocks < 1:
            return 0
        # The profile is in seconds of its own machine, so the copies' seconds are put into those.
        stretch = self._stretch or 1.0
        return blocks_to_load(
            self._profile,
            cached_tokens=cached_tokens,
            computed_tokens=computed_tokens,
            loadable_blocks=loadable_blocks,
            block_tokens=block_tokens,
            block_bytes=block_bytes,
            bandwidth_bytes_per_s=copying.bandwidth_bytes_per_s * stretch,
            latency_s=copying.latency_s / stretch if with_latency else 0.0,
        )


@dataclass(slots=True)
class Speeds:
    """What this machine was measured at: computing, and copying from each slower tier."""

    computing: ComputingSpeed
    from_host: CopyingSpeed = field(default_factory=lambda: CopyingSpeed(FIRST_HOST_BANDWIDTH))
    from_disk: CopyingSpeed = field(default_factory=CopyingSpeed)


def _running_mean(old: float, latest: float) -> float:
    return old + LATEST_WEIGHT * (latest - old)
