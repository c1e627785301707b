"""Fits the cost profile of the kept run's machine to its requests that were asked one at a time.

Only those: the loads with which the virtual clock is compared have no part in the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ragcache_engine.knowledge import CostProfile

ONE_AT_A_TIME = "1 at a time"
COMPARED = ("off", "on", "lru", "arc", "ragcache")
"""The systems, by key, whose real times the virtual clock is fitted to and compared with."""
GRID_CACHED, GRID_COMPUTED = (0, 4096), (0, *(16 << step for step in range(9)))


@dataclass(frozen=True, slots=True)
class Fit:
    """A request alone takes fixed_s + token_s * computed + pair_s * computed * (cached + computed / 2).

    decode_s: the time between two tokens of a request alone, in the median.
    requests: how many were fitted. error: half of the requests are nearer to the fit than this share.
    """

    fixed_s: float
    token_s: float
    pair_s: float
    decode_s: float
    requests: int
    error: float

    @property
    def outside_s(self) -> float:
        """Seconds of a request outside the model's process: what its step has over one for a token."""
        return max(0.0, self.fixed_s + self.token_s - self.decode_s)

    def profile(self, hardware: str) -> CostProfile:
        """Return the fit as a cost profile."""
        return CostProfile(
            model="SmolLM2-135M-Instruct",
            dtype="bfloat16",
            hardware=hardware,
            vllm_version="",
            block_tokens=32,
            cached_tokens=GRID_CACHED,
            computed_tokens=GRID_COMPUTED,
            seconds=tuple(
                tuple(
                    self.fixed_s + self.token_s * new + self.pair_s * new * (old + new / 2)
                    for new in GRID_COMPUTED
                )
                for old in GRID_CACHED
            ),
        )


def fit_run(plays: Iterable[Mapping[str, Any]]) -> Fit:
    """Fit the requests asked one at a time of systems that compute exactly what they do not find.

    Those that a guess has disturbed are left out.
    """
    answers = [
        answer
        for play in plays
        if play["load"] == ONE_AT_A_TIME and play["system"] in COMPARED
        for answer in play["answers"]
        if answer["speculation"] == "none"
    ]
    rows = [_terms(answer) for answer in answers]
    seconds = np.array([answer["ttft_s"] for answer in answers])
    weights = 1 / seconds  # shares of a time count, not seconds
    found, *_ = np.linalg.lstsq(np.array(rows) * weights[:, None], seconds * weights, rcond=None)
    errors = np.abs(np.array(rows) @ found - seconds) / seconds
    between = [
        (answer["total_s"] - answer["ttft_s"]) / (answer["output"] - 1)
        for answer in answers
        if answer["output"] > 1
    ]
    fixed_s, token_s, pair_s = map(float, found)
    return Fit(
        fixed_s, token_s, pair_s, median(between), len(answers), float(median(errors.tolist()))
    )


def _terms(answer: Mapping[str, Any]) -> Sequence[float]:
    cached = sum(answer["cached"])
    computed = answer["prompt"] - cached
    return 1.0, float(computed), computed * (cached + computed / 2)
