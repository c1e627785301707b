"""From plays to figures. Nothing here is random: the same plays always give the same figures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from comparing.systems import FULL, SYSTEMS
from ragcache_cli.calibrating.grading import is_right
from ragcache_engine.anywhere.rouge import rouge_l

RESAMPLES = 400
BASELINES = ("off", "on", "lru", "arc")
SMALLEST = 0.03
"""Never count a difference below this share: a machine's clock and scheduler vary by themselves."""

Pairs = Sequence[tuple[float, float]]
Point = tuple[str, str, str]
"""Part, trace and load. At one point, all systems of a part get the same requests."""


@dataclass(frozen=True, slots=True)
class Play:
    """The requests of one round at one load, played to one system.

    rate: requests a second; None if each request came when one before it had ended.
    load: its name in the plan. round: plays with the same part, trace, load and round had the same
    requests. start: how often the systems had been started before. span_s: from the first arrival to the
    last token. cpu_s: processor time of the system. others_cpu_s: that of all other running systems.
    foreign_cpu_s: that of everything else on the machine.
    """

    part: str
    trace: str
    system: str
    load: str
    rate: float | None
    round: int
    span_s: float
    cpu_s: float
    others_cpu_s: float
    foreign_cpu_s: float
    answers: list[dict[str, Any]]
    start: int = 0


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One system at one point, over all rounds. Times in seconds, tokens and cpu_s for one request.

    ttft_rounds: the mean of each round. cached: shares of prompt tokens from device, host and disk,
    all of them exact. borrowed, recomputed: shares of prompt tokens that were taken from another context,
    and that belong to such documents but were computed anew.
    completed: requests a second, from the first arrival to the last token.
    tbt: time between tokens of the median request; None if no answer has two tokens.
    idle_cpu: share of a core that all other systems took together.
    """

    rate: float | None
    requests: int
    ttft_p50: float
    ttft_p99: float
    ttft_rounds: tuple[float, ...]
    tbt: float | None
    computed_tokens: float
    cached: tuple[float, float, float]
    borrowed: float
    recomputed: float
    completed: float
    cpu_s: float
    idle_cpu: float

    @property
    def ttft(self) -> float:
        """The median of the rounds' means."""
        return statistics.median(self.ttft_rounds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A baseline's TTFT over RAGCache's: above 1, RAGCache is faster.

    value: the median of the rounds. low, high: the range of 90% of the resamplings. A resampling draws
    starts, rounds of each start, and pairs of each round; a pair is the two times of one question.
    """

    value: float
    low: float
    high: float

    @property
    def is_worse(self) -> bool:
        """Whether RAGCache is slower, beyond the noise."""
        return self.high < 1 and self.value < 1 - SMALLEST

    @property
    def is_better(self) -> bool:
        return self.low > 1 and self.value > 1 + SMALLEST

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def points(plays: Iterable[Play]) -> list[Point]:
    """Return every point once, in the order they were played."""
    return list(dict.fromkeys((play.part, play.trace, play.load) for play in plays))


def plays_at(plays: Iterable[Play], point: Point) -> dict[str, list[Play]]:
    """Return the plays of a point by system, in the order of rounds."""
    found: dict[str, list[Play]] = {}
    for play in plays:
        if (play.part, play.trace, play.load) == point:
            found.setdefault(play.system, []).append(play)
    return found


def system_figures(plays: Sequence[Play]) -> SystemFigures:
    """Summarize the plays of one system at one point. Raises ValueError if there is none."""
    if not plays:
        raise ValueError("figures need at least one play")
    answers = [answer for play in plays for answer in play.answers]
    ttfts = [answer["ttft_s"] for answer in answers]
    prompt = sum(answer["prompt"] for answer in answers)
    cached = [sum(answer["cached"][tier] for answer in answers) for tier in range(3)]
    borrowed = sum(answer.get("borrowed", 0) for answer in answers)
    between = [
        (answer["total_s"] - answer["ttft_s"]) / (answer["output"] - 1)
        for answer in answers
        if answer["output"] > 1
    ]
    spans = sum(play.span_s for play in plays)
    return SystemFigures(
        rate=plays[0].rate,
        requests=len(answers),
        ttft_p50=statistics.median(ttfts),
        ttft_p99=float(np.quantile(ttfts, 0.99)),
        ttft_rounds=tuple(
            statistics.fmean(answer["ttft_s"] for answer in play.answers) for play in plays
        ),
        tbt=statistics.median(between) if between else None,
        computed_tokens=(prompt - sum(cached) - borrowed) / len(answers),
        cached=(cached[0] / prompt, cached[1] / prompt, cached[2] / prompt),
        borrowed=borrowed / prompt,
        recomputed=sum(answer.get("recomputed", 0) for answer in answers) / prompt,
        completed=len(answers) / spans,
        cpu_s=sum(play.cpu_s for play in plays) / len(answers),
        idle_cpu=sum(play.others_cpu_s for play in plays) / spans,
    )


def ttft_ratio(baseline: Sequence[Play], ours: Sequence[Play]) -> Ratio:
    """Divide the mean TTFT of the baseline by ours. Both hold the same rounds of the same requests."""
    starts: dict[int, list[Pairs]] = {}
    for theirs, mine in zip(baseline, ours, strict=True):
        pairs = [
            (their["ttft_s"], my["ttft_s"])
            for their, my in zip(theirs.answers, mine.answers, strict=True)
        ]
        starts.setdefault(mine.start, []).append(pairs)
    dice = random.Random(1)
    drawn = [_resampled(list(starts.values()), dice) for _ in range(RESAMPLES)]
    value = statistics.median(_of_means(pairs) for rounds in starts.values() for pairs in rounds)
    low, high = np.quantile(drawn, (0.05, 0.95))
    return Ratio(value, float(low), float(high))


def _resampled(starts: Sequence[Sequence[Pairs]], dice: random.Random) -> float:
    """Draw one resampling: starts, then their rounds, then the pairs of these.

    Requests of a round wait for one another, and rounds of a start have much in common: resampling
    single requests alone would make the range too narrow.
    """
    return statistics.median(
        _of_means(dice.choices(pairs, k=len(pairs)))
        for rounds in dice.choices(starts, k=len(starts))
        for pairs in dice.choices(rounds, k=len(rounds))
    )


def _of_means(pairs: Pairs) -> float:
    return sum(theirs for theirs, _ in pairs) / sum(mine for _, mine in pairs)


def compare_all(plays: Sequence[Play]) -> list[tuple[Point, str, Ratio]]:
    """Compare RAGCache with every baseline that was measured at the same point, for every point."""
    found = []
    for point in points(plays):
        systems = plays_at(plays, point)
        if FULL.key in systems:
            found += [
                (point, key, ttft_ratio(systems[key], systems[FULL.key]))
                for key in BASELINES
                if key in systems
            ]
    return found


def disturbance(plays: Sequence[Play]) -> float:
    """Return the greatest share of a core that other programs took, on average, during one play."""
    return max((play.foreign_cpu_s / play.span_s for play in plays), default=0.0)


@dataclass(frozen=True, slots=True)
class Differing:
    """How many of `asked` answers of two systems differ in at least one character."""

    left: str
    right: str
    differing: int
    asked: int


def differing_answers(plays: Sequence[Play]) -> list[Differing]:
    """Compare every system with the first one of its part.

    Systems that change prompts, and those whose answers are approximate, are left out.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for point in points(plays):
        found = plays_at(plays, point)
        same = [
            key
            for key in found
            if not SYSTEMS[key].changes_prompt and not SYSTEMS[key].is_approximate
        ]
        for key in same[1:]:
            count = counts.setdefault((same[0], key), [0, 0])
            for left, right in zip(found[same[0]], found[key], strict=True):
                pairs = zip(left.answers, right.answers, strict=True)
                count[0] += sum(a["text"] != b["text"] for a, b in pairs)
                count[1] += len(left.answers)
    return [Differing(left, right, *count) for (left, right), count in counts.items()]


@dataclass(frozen=True, slots=True)
class Closeness:
    """A system's answers beside those of vLLM without a cache.

    equal: how many of `asked` are the same to the character. rouge_l: the mean.
    contained: the share that contains an accepted answer, of the questions that have one; None if none
      has.
    """

    asked: int
    equal: int
    rouge_l: float
    contained: float | None


def liken(
    texts: Sequence[str], full: Sequence[str], accepted: Sequence[Sequence[str]]
) -> Closeness:
    """Compare answers with those in full. accepted: for each question the accepted answers, or none."""
    graded = [is_right(text, golds) for text, golds in zip(texts, accepted, strict=True) if golds]
    pairs = list(zip(texts, full, strict=True))
    return Closeness(
        asked=len(pairs),
        equal=sum(text == wanted for text, wanted in pairs),
        rouge_l=statistics.fmean(
            1.0 if text == wanted else rouge_l(text, wanted) for text, wanted in pairs
        ),
        contained=statistics.fmean(graded) if graded else None,
    )
