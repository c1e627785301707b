"""The demo's measurements of each chain: the answers with their times and tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_engine import CachedTokens


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its answer from one chain.

    prompt: as it reached the model.
    ttft_s: seconds from the question to the first token, the retrieval included.
    """

    question: str
    prompt: str
    answer: str
    ttft_s: float
    prompt_tokens: int
    cached: CachedTokens


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of one chain to all questions, in their order. name: of the chain."""

    name: str
    asked: tuple[Asked, ...]

    @property
    def ttfts_s(self) -> list[float]:
        return [asked.ttft_s for asked in self.asked]

    @property
    def mean_ttft_s(self) -> float:
        return statistics.fmean(self.ttfts_s)

    @property
    def median_ttft_s(self) -> float:
        return statistics.median(self.ttfts_s)

    @property
    def prompt_tokens(self) -> int:
        return sum(asked.prompt_tokens for asked in self.asked)

    @property
    def cached(self) -> CachedTokens:
        return sum((asked.cached for asked in self.asked), CachedTokens())


def same_answers(run: Run, stock: Run) -> list[bool]:
    """Return for each question whether both chains gave the same text, to the character."""
    pairs = zip(run.asked, stock.asked, strict=True)
    return [mine.answer == theirs.answer for mine, theirs in pairs]


def same_prompts(runs: Sequence[Run]) -> bool:
    """Return whether every chain sent the model the same prompts, to the character."""
    return len({tuple(asked.prompt for asked in run.asked) for run in runs}) <= 1
