"""From plays to figures. Nothing here is random: the same plays always give the same figures."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from comparing.plays import Play
from comparing.systems import SYSTEMS, System

RESAMPLES = 400
LIMIT = 5.0
"""The paper's throughput is the rate at which the TTFT is five times that of the lowest rate."""

Pairs = Sequence[tuple[float, float]]
Point = tuple[str, str, str]
"""Part, trace and load. At one point, all systems of a part get the same requests."""


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """One system at one point, over all rounds. Times in seconds, tokens and cpu_s for one request.

    ttft_rounds: the mean of each round. cached: shares of prompt tokens from device, host and disk,
    all of them exact. borrowed, recomputed: shares of prompt tokens that were taken from another context,
    and that belong to such documents but were computed anew.
    completed: requests a second, from the first arrival to the last token. search: the median.
    tbt: time between tokens of the median request; None if no answer has two tokens.
    idle_cpu: share of a core that all other systems took together.
    """

    system: str
    rate: float | None
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    ttft_rounds: tuple[float, ...]
    tbt: float | None
    prompt_tokens: float
    computed_tokens: float
    cached: tuple[float, float, float]
    borrowed: float
    recomputed: float
    completed: float
    search: float
    cpu_s: float
    idle_cpu: float

    @property
    def ttft_median_of_rounds(self) -> float:
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
    def is_beyond_noise(self) -> bool:
        return self.low > 1 or self.high < 1

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
    ttfts = sorted(answer["ttft_s"] for answer in answers)
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
        system=plays[0].system,
        rate=plays[0].rate,
        requests=len(answers),
        ttft_mean=statistics.fmean(ttfts),
        ttft_p50=quantile(ttfts, 0.5),
        ttft_p99=quantile(ttfts, 0.99),
        ttft_rounds=tuple(
            statistics.fmean(answer["ttft_s"] for answer in play.answers) for play in plays
        ),
        tbt=statistics.median(between) if between else None,
        prompt_tokens=prompt / len(answers),
        computed_tokens=(prompt - sum(cached) - borrowed) / len(answers),
        cached=(cached[0] / prompt, cached[1] / prompt, cached[2] / prompt),
        borrowed=borrowed / prompt,
        recomputed=sum(answer.get("recomputed", 0) for answer in answers) / prompt,
        completed=len(answers) / spans,
        search=statistics.median(answer["search_s"] for answer in answers),
        cpu_s=sum(play.cpu_s for play in plays) / len(answers),
        idle_cpu=sum(play.others_cpu_s for play in plays) / spans,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of rising values, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


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
    drawn = sorted(_resampled(list(starts.values()), dice) for _ in range(RESAMPLES))
    value = statistics.median(_of_means(pairs) for rounds in starts.values() for pairs in rounds)
    return Ratio(value, quantile(drawn, 0.05), quantile(drawn, 0.95))


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


@dataclass(frozen=True, slots=True)
class Throughput:
    """The rate, in requests a second, at which the TTFT crosses the limit.

    is_least: the TTFT stayed below the limit at every rate tried; the true rate is at least this.
    """

    rate: float
    is_least: bool

    def __str__(self) -> str:
        return f"{'at least ' if self.is_least else ''}{self.rate:.2f}"


def throughput(curve: Sequence[tuple[float, float]]) -> Throughput:
    """Find where the TTFT crosses LIMIT times that of the lowest rate, interpolated between two rates.

    curve: pairs of rate and mean TTFT, at least one.
    """
    ordered = sorted(curve)
    limit = LIMIT * ordered[0][1]
    for (rate, ttft), (next_rate, next_ttft) in pairwise(ordered):
        if next_ttft > limit:
            share = (limit - ttft) / (next_ttft - ttft)
            return Throughput(rate + share * (next_rate - rate), False)
    return Throughput(ordered[-1][0], True)


def disturbance(plays: Sequence[Play]) -> float:
    """Return the greatest share of a core that other programs took, on average, during one play."""
    return max((play.foreign_cpu_s / play.span_s for play in plays), default=0.0)


def curve(plays: Sequence[Play], part: str, trace: str, system: str) -> list[tuple[float, float]]:
    """Return pairs of rate and mean TTFT (the median of the rounds) of a system, by rising rate."""
    found = []
    for point in points(plays):
        mine = plays_at(plays, point).get(system)
        if point[:2] == (part, trace) and mine and mine[0].rate:
            found.append((mine[0].rate, system_figures(mine).ttft_median_of_rounds))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Differing:
    """How many of `asked` answers of two systems differ in at least one character."""

    left: str
    right: str
    differing: int
    asked: int


def differing_answers(
    plays: Sequence[Play], systems: Mapping[str, System] = SYSTEMS
) -> list[Differing]:
    """Compare every system with the first one of its part.

    Systems that change prompts, and those whose answers are approximate, are left out.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for point in points(plays):
        found = plays_at(plays, point)
        same = [
            key
            for key in found
            if not systems[key].changes_prompt and not systems[key].is_approximate
        ]
        for key in same[1:]:
            count = counts.setdefault((same[0], key), [0, 0])
            for left, right in zip(found[same[0]], found[key], strict=True):
                pairs = zip(left.answers, right.answers, strict=True)
                count[0] += sum(a["text"] != b["text"] for a, b in pairs)
                count[1] += len(left.answers)
    return [Differing(left, right, *count) for (left, right), count in counts.items()]
