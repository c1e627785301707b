"""Plays every system at every rate, each on a clock of its own, in processes beside one another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import fmean

from comparing.systems import OFF, System
from comparing.workload import draw_arrivals, draw_questions

from ragcache_engine.knowledge.eviction import DEFAULT_POLICY
from virtual.engine import Asked, Served
from virtual.figures import SLO_TIMES, Figures, summarize
from virtual.machines import Machine
from virtual.questions import DocumentOrder, Questions
from virtual.systems import BY_KEY, document_order, open_system

SEARCH_S = 0.0006
"""What searching the bench's questions takes: the median of its kept run."""
ALONE = 60
"""How many requests tell the capacity without a cache."""
RATES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
"""Shares of the capacity of vLLM without a cache that serves one request after the other."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played: a trace on a machine.

    trace: a question set, with top_k documents a question. zipf: see workload.draw_questions.
    requests: how many count at each rate. warm: how many fill the caches before.
    """

    machine: Machine
    trace: str
    top_k: int
    requests: int
    warm: int
    zipf: float = 1.1
    seed: int = 1
    rates: tuple[float, ...] = RATES

    @property
    def name(self) -> str:
        return f"{self.machine.name}: {self.trace}, top-{self.top_k}"


@dataclass(frozen=True, slots=True)
class SystemRun:
    """A system in a scene: its figures, one for each rate. capacity, slo_s: of the scene."""

    scene: str
    system: str
    capacity: float
    slo_s: float
    figures: tuple[Figures, ...]


OpenQuestions = Callable[[Scene], tuple[Questions, str]]
"""Returns the questions of a scene, and the folder of a model whose tokenizer has read them."""


def run_scenes(
    wanted: Sequence[tuple[Scene, System]], open_questions: OpenQuestions, jobs: int
) -> Iterator[SystemRun]:
    """Play scenes to systems, so many at a time. Yields in the order of the ends."""
    # Bytes that Python hashes with a random seed decide nothing, but a set of them is seen in that order.
    os.environ.setdefault("PYTHONHASHSEED", "0")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = [
            pool.submit(run_system, scene, system.key, open_questions) for scene, system in wanted
        ]
        for ended in as_completed(running):
            yield ended.result()


def run_system(scene: Scene, key: str, open_questions: OpenQuestions) -> SystemRun:
    """Play a scene to one system, at each rate with caches that were emptied and filled anew."""
    questions, model = open_questions(scene)
    machine = scene.machine
    numbers = draw_questions(len(questions), scene.warm + scene.requests, scene.zipf, scene.seed)
    alone = _serve_alone(scene, questions, numbers, model)
    capacity = 1 / fmean(one.total_s for one in alone)
    slo_s = SLO_TIMES * fmean(one.ttft_s for one in alone)
    figures = []
    for share in scene.rates:
        rate = share * capacity
        # Documents are ordered in the order of arrival, as the retriever does.
        asked = list(_ordered(BY_KEY[key], scene, questions, numbers))
        times = draw_arrivals(rate, scene.requests, scene.seed)
        with open_system(BY_KEY[key], machine, model) as engine:
            if key != OFF.key:
                before = [replace(one, answer_tokens=1) for one in asked[: scene.warm]]
                engine.play(before, at_once=machine.at_once)
            served = engine.play(
                [
                    replace(one, at_s=at_s, search_s=SEARCH_S)
                    for one, at_s in zip(asked[scene.warm :], times, strict=True)
                ]
            )
        figures.append(summarize(rate, served, slo_s))
    return SystemRun(scene.name, key, capacity, slo_s, tuple(figures))


def _ordered(
    system: System, scene: Scene, questions: Questions, numbers: Sequence[int]
) -> Iterator[Asked]:
    name, machine = document_order(system), scene.machine
    capacity_tokens = machine.device_tokens + machine.host_tokens
    ordering = DocumentOrder(name, capacity_tokens, DEFAULT_POLICY)
    for number in numbers:
        found = questions.documents(number)
        documents = found if name == "retrieved" else ordering.arrange(found)
        yield replace(questions.request(number, documents), answer_tokens=questions.lengths[number])


def _serve_alone(
    scene: Scene, questions: Questions, numbers: Sequence[int], model: str
) -> list[Served]:
    different = list(dict.fromkeys(numbers))[:ALONE]
    with open_system(OFF, scene.machine, model) as engine:
        return engine.play(
            [
                replace(questions.request(number), answer_tokens=questions.lengths[number])
                for number in different
            ],
            at_once=1,
        )
