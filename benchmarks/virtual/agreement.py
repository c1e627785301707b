"""Plays the kept run of the real engine again on the virtual clock, and compares."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from comparing.workload import draw_questions

from virtual.engine import Asked, Served
from virtual.machines import Machine
from virtual.questions import Questions
from virtual.systems import BY_KEY, open_system

Plays = Sequence[Mapping[str, Any]]
MAIN = "main"


@dataclass(frozen=True, slots=True)
class Agreement:
    """One system at one load, really and virtually. Times in seconds, over all starts and rounds.

    real_starts: the real mean of each start, whose difference is noise.
    """

    trace: str
    load: str
    system: str
    real_mean: float
    virtual_mean: float
    real_p50: float
    virtual_p50: float
    real_p99: float
    virtual_p99: float
    real_cached: float
    virtual_cached: float
    real_starts: tuple[float, ...]


def replay_system(
    system: str,
    plays: Plays,
    machine: Machine,
    questions: Callable[[str], Questions],
    model: str,
    warm: Mapping[str, Sequence[int]],
) -> Iterator[Agreement]:
    """Play to one system what it was played in the run's main part, trace by trace.

    plays: all of the run. warm: by trace, the questions that filled the caches before each start.
    """
    mine = [one for one in plays if one["part"] == MAIN and one["system"] == system]
    for trace in dict.fromkeys(one["trace"] for one in mine):
        asked = questions(trace)
        found: dict[str, list[Served]] = {}
        of_trace = [one for one in mine if one["trace"] == trace]
        for start in sorted({one["start"] for one in of_trace}):
            with open_system(BY_KEY[system], machine, model) as engine:
                if system != "off":
                    engine.play([asked.request(number) for number in warm[trace]], at_once=4)
                for play in of_trace:
                    if play["start"] == start:
                        served = engine.play([_as_asked(one, asked) for one in play["answers"]])
                        found.setdefault(play["load"], []).extend(served)
        for load, served in found.items():
            real = [one for one in of_trace if one["load"] == load]
            yield _compare(trace, load, system, real, served)


def warm_questions(report: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return by trace the questions that filled the caches before the main part of a run."""
    seed = int(report["command"].split("--seed ")[1].split()[0])
    drawn: dict[str, list[int]] = {}
    for part in plan["groups"][0]["parts"]:
        spec = part["trace"]
        if part["name"] == MAIN:
            name = f"{spec['set']}, top-{spec['top_k']}, Zipf {spec['zipf']:g}"
            drawn[name] = _draw(spec, part["warm"], seed)
    return drawn


SIZES = {"squad": 2621, "long": 242}
"""How many questions of each set fitted the context in the run."""


def _draw(spec: Mapping[str, Any], count: int, seed: int) -> list[int]:
    return draw_questions(SIZES[spec["set"]], count, spec["zipf"], seed)


def _as_asked(answer: Mapping[str, Any], questions: Questions) -> Asked:
    return replace(
        questions.request(answer["question"]),
        answer_tokens=answer["output"],
        at_s=answer["at_s"],
        search_s=answer["search_s"],
    )


def _compare(
    trace: str, load: str, system: str, real: Plays, served: Sequence[Served]
) -> Agreement:
    answers = [answer for play in real for answer in play["answers"]]
    ttfts = [answer["ttft_s"] for answer in answers]
    virtual = [one.ttft_s for one in served]
    starts = sorted({play["start"] for play in real})
    return Agreement(
        trace=trace,
        load=load,
        system=system,
        real_mean=statistics.fmean(ttfts),
        virtual_mean=statistics.fmean(virtual),
        real_p50=statistics.median(ttfts),
        virtual_p50=statistics.median(virtual),
        real_p99=float(np.quantile(ttfts, 0.99)),
        virtual_p99=float(np.quantile(virtual, 0.99)),
        real_cached=sum(sum(answer["cached"]) for answer in answers)
        / sum(answer["prompt"] for answer in answers),
        virtual_cached=sum(one.cached_tokens for one in served)
        / sum(one.prompt_tokens for one in served),
        real_starts=tuple(
            statistics.fmean(
                answer["ttft_s"]
                for play in real
                if play["start"] == start
                for answer in play["answers"]
            )
            for start in starts
        ),
    )
