"""What is measured, in which order: a short plan, the usual one, and the whole grid."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_cli.bench import contextpilot
from ragcache_cli.bench.systems import (
    ABLATIONS,
    ARC,
    CONTEXTPILOT,
    DEFAULTS,
    FULL,
    LRU,
    OFF,
    ON,
    System,
)

LONG = "long"
"""Name of the set of whole squad articles."""


@dataclass(frozen=True, slots=True)
class Trace:
    """set: of question_sets.SETS, LONG, or "own". zipf: see workload.drawn."""

    set: str
    top_k: int
    zipf: float | None

    @property
    def name(self) -> str:
        drawn = "as they came" if self.zipf is None else f"Zipf {self.zipf:g}"
        return f"{self.set}, top-{self.top_k}, {drawn}"


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come. rate: as a share of what vLLM without cache can take; None: as many as
    `at_once` at a time, each as soon as one before has ended."""

    rate: float | None
    at_once: int = 1

    @property
    def name(self) -> str:
        return f"{self.at_once} at a time" if self.rate is None else f"at {self.rate:g} of capacity"


@dataclass(frozen=True, slots=True)
class Part:
    """Plays of one trace to systems that are up together.

    warm: requests before, which are not counted. requests: of one play. rounds: plays of each load,
    the systems in another order each time.
    """

    name: str
    trace: Trace
    loads: tuple[Load, ...]
    warm: int
    requests: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Group:
    """Systems that are up together, and what is played to them."""

    systems: tuple[System, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """equality: questions asked in float32. quality: questions answered freely, for their quality.

    overlap: questions asked of an index of `overlap_vectors`. nodes: sizes of the knowledge tree.
    """

    name: str
    groups: tuple[Group, ...]
    equality: int
    quality: int
    overlap: int
    overlap_vectors: int
    nodes: tuple[int, ...]


MAIN = (OFF, ON, LRU, ARC, FULL)
PEERS = (ON, LRU, FULL)
SKEW = 1.2
"""With it, as many documents of squad take 60% of the retrievals as in the paper's MMLU trace: 3%."""
ONE_BY_ONE = Load(None, 1)


def rates(*shares: float) -> tuple[Load, ...]:
    return tuple(Load(share) for share in shares)


def ablation_groups(trace: Trace, requests: int, rounds: int, load: Load) -> tuple[Group, ...]:
    """Each variant beside the full system; few at a time, for each takes 1.5 GiB."""
    part = Part("ablation", trace, (load,), 60, requests, rounds)
    others = (CONTEXTPILOT,) if contextpilot.is_installed() else ()
    halves = (ABLATIONS[:4], (*ABLATIONS[4:], *others))
    return tuple(Group((FULL, *half), (part,)) for half in halves)


def quick(main: str, has_long: bool) -> Plan:
    """About 5 minutes on two cores."""
    trace = Trace(main, 2, SKEW)
    systems = (OFF, ON, LRU, FULL)
    part = Part("main", trace, rates(0.5, 1.5), 40, 16, 2)
    return Plan("quick", (Group(systems, (part,)),), 0, 0, 0, 0, (1_000, 10_000))


def usual(main: str, has_long: bool) -> Plan:
    """About 30 minutes on two cores."""
    trace = Trace(main, 2, SKEW)
    first = Part("main", trace, rates(0.5, 1.0, 1.5), 80, 30, 3)
    sweeps = [
        Part("sweep", Trace(main, top_k, SKEW), (ONE_BY_ONE,), 24, 16, 1) for top_k in (1, 3, 5)
    ]
    sweeps += [Part("sweep", Trace(main, 2, None), (ONE_BY_ONE,), 24, 16, 1)]
    if has_long:
        sweeps += [
            Part("sweep", Trace("multihoprag", 2, None), (ONE_BY_ONE,), 24, 16, 1),
            Part("sweep", Trace(LONG, 1, SKEW), (ONE_BY_ONE,), 16, 12, 1),
        ]
    groups = (
        Group(MAIN, (first,)),
        Group(PEERS, tuple(sweeps)),
        *ablation_groups(trace, 24, 2, Load(1.5)),
    )
    return Plan("usual", groups, 24, 60, 40, 200_000, (1_000, 10_000, 100_000, 1_000_000))


def full(main: str, has_long: bool) -> Plan:
    """Every dimension on every system: some eight hours on two cores."""
    every = (OFF, ON, DEFAULTS, LRU, ARC, FULL)
    loads = rates(0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
    sets = ("squad", "multihoprag", "nq_open", "musique") if has_long else (main,)
    parts = [
        Part(
            "main" if (name, k, z) == (main, 2, SKEW) else "sweep",
            Trace(name, k, z),
            loads,
            200,
            60,
            3,
        )
        for name in sets
        for k in (1, 2, 3, 5)
        for z in (None, 1.0, SKEW)
    ]
    if has_long:
        parts += [Part("sweep", Trace(LONG, 1, z), loads, 100, 40, 3) for z in (None, SKEW)]
    trace = Trace(main, 2, SKEW)
    groups = (Group(every, tuple(parts)), *ablation_groups(trace, 60, 5, Load(1.5)))
    return Plan("full", groups, 100, 300, 100, 300_000, (1_000, 10_000, 100_000, 1_000_000))


PLANS = {"quick": quick, "usual": usual, "full": full}
