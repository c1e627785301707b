"""Follow how busy the model is, and how fast it computes a prefill. All times are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_engine.speculation.decide import max_prefill_requests
from ragcache_engine.values import ModelLimits

NEWEST_WEIGHT = 0.25
"""Share of the newest measurement in a running mean."""


def running_mean(so_far: float | None, newest: float) -> float:
    """Return the mean with one more measurement. so_far: None before the first one."""
    return newest if so_far is None else so_far + NEWEST_WEIGHT * (newest - so_far)


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """Running means over all requests that had the model to themselves. None: none measured yet.

    prefill_s: from the request to its first token.
    computed_tokens: prompt tokens computed in that time.
    """

    prefill_s: float | None = None
    computed_tokens: float | None = None

    def after_prefill(self, seconds: float, computed_tokens: int) -> ModelSpeed:
        """Return the speed with one more measured prefill."""
        return ModelSpeed(
            running_mean(self.prefill_s, seconds),
            running_mean(self.computed_tokens, computed_tokens),
        )

    @property
    def token_s(self) -> float:
        """Seconds to compute one prompt token; 0 before the first measurement."""
        return (self.prefill_s or 0.0) / max(1.0, self.computed_tokens or 0.0)


class PrefillLoad:
    """Follow every prefill of an engine, speculative or not. Used on the engine's loop only.

    Each prefill goes by the object that it belongs to: a Speculation or a Claim.
    speed: running means over the prefills that had the model to themselves.
    """

    def __init__(self) -> None:
        self.speed = ModelSpeed()
        self._running: set[object] = set()
        self._prompt_tokens: float | None = None

    def __len__(self) -> int:
        """Return how many requests have no first token yet."""
        return len(self._running)

    def begin(self, prefill: object) -> bool:
        """Note that this prefill begins. Return True if no other prefill runs."""
        is_alone = not self._running
        self._running.add(prefill)
        return is_alone

    def end(self, prefill: object) -> None:
        """Note that this prefill is done or was given up. A second call does nothing."""
        self._running.discard(prefill)

    def count_others(self, prefill: object) -> int:
        """Return how many other prefills run, whether or not this one runs."""
        return len(self._running) - (prefill in self._running)

    def note_speed(self, seconds: float, computed_tokens: int) -> None:
        """Add one measurement: a prefill that ran alone computed this many tokens in this time."""
        self.speed = self.speed.after_prefill(seconds, computed_tokens)

    def note_prompt(self, tokens: int) -> None:
        """Add the length of one prompt to the running mean that `max_requests` uses."""
        self._prompt_tokens = running_mean(self._prompt_tokens, tokens)

    def max_requests(self, limits: ModelLimits) -> int:
        """Return how many prompts of average length one step of the model computes, at least 1."""
        tokens = self._prompt_tokens or limits.step_tokens
        return max_prefill_requests(limits.step_tokens, limits.device_tokens, int(tokens))
