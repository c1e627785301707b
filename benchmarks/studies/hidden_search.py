"""How much of a long search the prefill hides: the same questions with and without speculation."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragcache_cli.bench.figures import quantile


@dataclass(frozen=True, slots=True)
class Overlap:
    """Medians over the questions.

    hidden, low, high: median and quartiles of the share of a search that ran beside the prefill of the
      documents it ended with. gain_s: TTFT without speculation less that with it, question by question.
    """

    questions: int
    vectors: int
    search_s: float
    hidden: float
    low: float
    high: float
    gain_s: float
    gain_low_s: float
    gain_high_s: float
    plain_ttft_s: float
    staged_ttft_s: float
    outcomes: Mapping[str, int]


def overlap_of(
    staged: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], vectors: int
) -> Overlap:
    """Both hold the same questions in the same order; at least one."""
    shares = sorted(one["hidden"] for one in staged)
    gains = sorted(
        alone["ttft_s"] - helped["ttft_s"] for alone, helped in zip(plain, staged, strict=True)
    )
    return Overlap(
        questions=len(shares),
        vectors=vectors,
        search_s=statistics.median(one["search_s"] for one in plain),
        hidden=quantile(shares, 0.5),
        low=quantile(shares, 0.25),
        high=quantile(shares, 0.75),
        gain_s=quantile(gains, 0.5),
        gain_low_s=quantile(gains, 0.25),
        gain_high_s=quantile(gains, 0.75),
        plain_ttft_s=statistics.median(one["ttft_s"] for one in plain),
        staged_ttft_s=statistics.median(one["ttft_s"] for one in staged),
        outcomes=dict(Counter(one["speculation"] for one in staged)),
    )
