"""How fast this machine computes and copies, as measured so far.

By these speeds the manager decides whether to load a block or to compute it. Units: seconds and bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from ragcache_engine.knowledge import CostProfile
from ragcache_engine.knowledge.cost import blocks_to_load

LATEST_WEIGHT = 0.2
"""The weight of the latest measurement in a running mean."""

SHORTEST_STEP_TOKENS = 64
"""The fewest tokens of a step that is measured. The time of a shorter step is mostly its fixed cost.
For the same reason all requests with fewer tokens left cost the same: one step, at its fixed cost."""

SHORT_STEPS = 12
"""While others wait, a step that computes prompts takes as long as so many without any. What each step
costs besides is then at most a twelfth."""

MOST_TIMES_SLOWER = 4
"""A step that takes longer than this many times the expected counts as so long: a pause is no speed."""

WAITS = 5
"""How many of the latest waits count."""

PASSED_OVER_TO_TRY = 32
"""One of so many requests that could load, but would compute, tries to load."""

FIRST_BANDWIDTH = 5e9
"""Assumed bytes a second before the first copy is measured: those of a quick disk. What looks slower than
computing is not copied, and so never measured."""

FIRST_HOST_BANDWIDTH = 50e9
"""The same for copies from the host: those of an accelerator's bus."""


FIRST_SHARED_BANDWIDTH = 1e9
"""The same for copies from a shared store: those of a network of 10 Gbit/s."""


class Rate(NamedTuple):
    """How fast copies are: the seconds until they begin, and their bytes a second from then on."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


class CopyingSpeed:
    """The speed of copies from one slower tier, as measured so far.

    The latency is the median of the latest waits, so that a single slow one decides nothing. While copies
    look slow, none is made, and none would show that they are quick again; so from time to time one
    request tries it.
    """

    def __init__(self, bandwidth_bytes_per_s: float = FIRST_BANDWIDTH) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.latency_s = 0.0
        self._first = bandwidth_bytes_per_s
        self._is_measured = False
        self._waits = deque([0.0] * WAITS, maxlen=WAITS)
        self._passed_over = 0

    @property
    def rate(self) -> Rate:
        """The speed as it looks now."""
        return Rate(self.bandwidth_bytes_per_s, self.latency_s)

    @property
    def best_rate(self) -> Rate:
        """The speed that a trial hopes for."""
        return Rate(max(self._first, self.bandwidth_bytes_per_s))

    def record_copy(self, size_bytes: int, seconds: float) -> None:
        """Record how long a copy took, from its beginning."""
        if size_bytes > 0 and seconds > 0:
            seen = size_bytes / seconds
            if self._is_measured:
                seen = _running_mean(self.bandwidth_bytes_per_s, seen)
            self.bandwidth_bytes_per_s, self._is_measured = seen, True

    def record_wait(self, size_bytes: int, seconds: float) -> None:
        """Record how long a request waited, from asking for a copy to computing with it.

        Call this only if the model computed nothing else meanwhile.
        """
        self._waits.append(max(0.0, seconds - size_bytes / self.bandwidth_bytes_per_s))
        self.latency_s = median(self._waits)

    def pass_over(self) -> bool:
        """Note that a request computes what it could load; return whether it should try to load."""
        self._passed_over += 1
        if self._passed_over < PASSED_OVER_TO_TRY:
            return False
        self._passed_over = 0
        return True


class ComputingSpeed:
    """Predicts prefill times: the cost profile's times, scaled to the steps measured here.

    A profile of this model and machine needs no scaling. The default profile does, and so does any
    profile while the machine computes something else as well.

    profile: this model's and machine's own; None: one of another model, until steps were measured.
    short_step_s: how long steps take that compute no prompt, only next tokens of answers, in seconds.
    """

    def __init__(self, profile: CostProfile | None = None) -> None:
        self.short_step_s = 0.0
        self._is_own = profile is not None
        profile = profile or CostProfile.default()
        self._profile = profile
        self._stretch: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the times are those of this model and machine."""
        return self._is_own or self._stretch is not None

    def record_step(self, cached_tokens: int, computed_tokens: int, seconds: float) -> None:
        """Record how long a step of the model took that computed prompts. Short steps are ignored."""
        if computed_tokens < SHORTEST_STEP_TOKENS or seconds <= 0:
            return
        expected = self._profile.prefill_s(cached_tokens, computed_tokens)
        if expected > 0:
            seen = seconds / expected
            if self._stretch is not None:
                seen = min(seen, MOST_TIMES_SLOWER * self._stretch)
                seen = _running_mean(self._stretch, seen)
            self._stretch = seen

    def record_short_step(self, seconds: float) -> None:
        """Record how long a step of the model took that computed no prompt."""
        if seconds > 0:
            known_s = self.short_step_s or seconds
            self.short_step_s = _running_mean(known_s, min(seconds, MOST_TIMES_SLOWER * known_s))

    def bound_step(self, most_tokens: int) -> int:
        """Return how many prompt tokens a step may compute while others wait for it.

        Prompts that are computed one after the other end at different times, and on average sooner than
        in one long step; those with little left to compute are not held up. But each step takes some
        time besides, so a step is not shorter than several without a prompt.
        """
        most_s = self.prefill_s(0, most_tokens)
        seconds = SHORT_STEPS * self.short_step_s
        if not 0 < seconds < most_s:
            return most_tokens
        return min(most_tokens, max(int(seconds / most_s * most_tokens), SHORTEST_STEP_TOKENS))

    def prefill_s(self, cached_tokens: int, computed_tokens: int) -> float:
        """Predict the seconds to compute tokens behind cached ones."""
        return (self._stretch or 1.0) * self._profile.prefill_s(cached_tokens, computed_tokens)

    def blocks_worth_loading(
        self,
        rate: Rate,
        *,
        cached_tokens: int,
        computed_tokens: int,
        loadable_blocks: int,
        block_tokens: int,
        block_bytes: int,
    ) -> int:
        """Choose how many of the next blocks to load, so that loading and prefill end soonest.

        rate: the speed of the tier that has the blocks. The other sizes are those of `blocks_to_load`.
        """
        if loadable_blocks < 1:
            return 0
        # The profile's times are those of its own machine, so convert the copies' times to that scale.
        stretch = self._stretch or 1.0
        return blocks_to_load(
            self._profile,
            cached_tokens=cached_tokens,
            computed_tokens=computed_tokens,
            loadable_blocks=loadable_blocks,
            block_tokens=block_tokens,
            block_bytes=block_bytes,
            bandwidth_bytes_per_s=rate.bandwidth_bytes_per_s * stretch,
            latency_s=rate.latency_s / stretch,
        )


@dataclass(slots=True)
class Speeds:
    """The measured speeds of this machine: of computing, and of copying from each slower tier."""

    computing: ComputingSpeed
    from_host: CopyingSpeed = field(default_factory=lambda: CopyingSpeed(FIRST_HOST_BANDWIDTH))
    from_disk: CopyingSpeed = field(default_factory=CopyingSpeed)
    from_shared: CopyingSpeed = field(default_factory=lambda: CopyingSpeed(FIRST_SHARED_BANDWIDTH))


def _running_mean(old: float, latest: float) -> float:
    return old + LATEST_WEIGHT * (latest - old)
