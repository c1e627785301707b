"""From served requests to figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from virtual.engine import Served

SLO_TIMES = 5.0
"""The SLO: a TTFT of so many times the mean TTFT of requests alone on vLLM without a cache."""
SLO_SHARE = 0.9
"""A rate is served within the SLO if this share of the requests is."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One system at one rate. Times in seconds.

    rate: requests a second. ttft_max: the longest that any request waited for its first token.
    fairness: Jain's index of the TTFTs, 1 if all wait alike, 1/requests if one alone waits.
    cached: the share of prompt tokens that was cached. completed: requests a second, from the first
    arrival to the last token. within_slo: the share of requests.
    """

    rate: float
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    ttft_max: float
    fairness: float
    cached: float
    completed: float
    within_slo: float


def summarize(rate: float, served: Sequence[Served], slo_s: float) -> Figures:
    """Summarize one play. slo_s: the longest TTFT within the SLO."""
    ttfts = [one.ttft_s for one in served]
    prompt = sum(one.prompt_tokens for one in served)
    span_s = max(one.at_s + one.total_s for one in served) - min(one.at_s for one in served)
    return Figures(
        rate=rate,
        requests=len(served),
        ttft_mean=statistics.fmean(ttfts),
        ttft_p50=statistics.median(ttfts),
        ttft_p99=float(np.quantile(ttfts, 0.99)),
        ttft_max=max(ttfts),
        fairness=jain_index(ttfts),
        cached=sum(one.cached_tokens for one in served) / prompt,
        completed=len(served) / span_s,
        within_slo=sum(ttft <= slo_s for ttft in ttfts) / len(ttfts),
    )


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's index of fairness. Source: Jain, Chiu and Hawe, 1984."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def slo_throughput(figures: Sequence[Figures]) -> tuple[float, bool]:
    """Return the highest rate that is served within the SLO, interpolated between two rates.

    The second value tells whether the rate is only a bound: True if all rates were served within it.
    0 if not even the lowest rate was.
    """
    ordered = sorted(figures, key=lambda one: one.rate)
    if ordered[0].within_slo < SLO_SHARE:
        return 0.0, False
    for lower, upper in pairwise(ordered):
        if upper.within_slo < SLO_SHARE:
            share = (lower.within_slo - SLO_SHARE) / (lower.within_slo - upper.within_slo)
            return lower.rate + share * (upper.rate - lower.rate), False
    return ordered[-1].rate, True


@dataclass(frozen=True, slots=True)
class Loss:
    """A rate at which RAGCache's TTFT is longer than a baseline's. measure: which quantile or mean.

    times: RAGCache's TTFT over the baseline's.
    """

    rate: float
    baseline: str
    measure: str
    times: float


MEASURES = ("ttft_mean", "ttft_p50", "ttft_p99")
LOSS_FROM = 1.005
"""The clock has no noise, so even half a percent is a loss."""


def find_losses(
    ours: Sequence[Figures], others: Mapping[str, Sequence[Figures]], measures: Sequence[str]
) -> list[Loss]:
    """Find every rate and measure at which a baseline is quicker. others: by key of the baseline."""
    return [
        Loss(mine.rate, key, measure, getattr(mine, measure) / getattr(theirs, measure))
        for key, figures in others.items()
        for mine, theirs in zip(ours, figures, strict=True)
        for measure in measures
        if getattr(mine, measure) > LOSS_FROM * getattr(theirs, measure)
    ]
