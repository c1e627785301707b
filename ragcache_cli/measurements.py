"""The demo's measurements of each side: the answers with their times, tokens and sources."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ragcache_engine import CachedTokens
from ragcache_engine.anywhere.rouge import rouge_l


class Side(StrEnum):
    """What answers a question in the demo, under the name that is shown."""

    STOCK = "stock vLLM"
    EXACT = "RAGCache, exact"
    ANYWHERE = "RAGCache, any position"


@dataclass(frozen=True, slots=True)
class PassageSource:
    """Where the tensors of one passage of a prompt came from.

    cached: tokens that were cached in the same context. borrowed: tokens taken from another context, of
    which `tier` names the cache that held them; None if that context was computed for this prompt.
    recomputed: tokens of a borrowed passage that were computed anew. The other tokens were computed.
    """

    passage: str
    tokens: int
    cached: CachedTokens = field(default_factory=CachedTokens)
    borrowed: int = 0
    recomputed: int = 0
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and its answer from one side.

    prompt: as it reached the model.
    ttft_s: seconds from the question to the first token, the retrieval included.
    cached: prompt tokens that were cached in the same context. borrowed: those from another context.
    passages: in the prompt's order; empty if the side does not tell of them.
    """

    question: str
    prompt: str
    answer: str
    ttft_s: float
    prompt_tokens: int
    cached: CachedTokens
    borrowed: CachedTokens = field(default_factory=CachedTokens)
    passages: tuple[PassageSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The answers of one side to all questions of a round, in their order. name: of the side."""

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

    @property
    def reused_share(self) -> float:
        """The share of the prompt tokens that were not computed, exact and borrowed together."""
        borrowed = sum(asked.borrowed.total for asked in self.asked)
        return (self.cached.total + borrowed) / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Round:
    """Some questions, answered by every side, each question by all sides before the next one.

    runs: stock's first. title: what distinguishes the questions.
    """

    title: str
    runs: tuple[Run, ...]

    @property
    def stock(self) -> Run:
        return self.runs[0]

    def run(self, name: str) -> Run:
        """Return the run of the side of this name."""
        return next(run for run in self.runs if run.name == name)


def same_answers(run: Run, stock: Run) -> list[bool]:
    """Return for each question whether both sides gave the same text, to the character."""
    pairs = zip(run.asked, stock.asked, strict=True)
    return [mine.answer == theirs.answer for mine, theirs in pairs]


def mean_likeness(run: Run, stock: Run) -> float:
    """Return the mean ROUGE-L of the answers to those of stock: 1 if all are equal."""
    pairs = zip(run.asked, stock.asked, strict=True)
    return statistics.fmean(rouge_l(mine.answer, theirs.answer) for mine, theirs in pairs)


def mostly_from_disk(run: Run) -> bool:
    """Return whether most prompt tokens of a run were on disk, from an earlier run of the program."""
    return run.cached.disk * 2 > run.prompt_tokens


def same_prompts(runs: Sequence[Run]) -> bool:
    """Return whether every side sent the model the same prompts, to the character."""
    return len({tuple(asked.prompt for asked in run.asked) for run in runs}) <= 1
