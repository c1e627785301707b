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
ABLATION = "ablation"
"""How the names of parts begin that compare RAGCache with itself."""


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
    `at_once` at a time, each as soon as one before has ended.

    times: requests of a play, in those of the part.
    """

    rate: float | None
    at_once: int = 1
    times: int = 1

    @property
    def name(self) -> str:
        return f"{self.at_once} at a time" if self.rate is None else f"at {self.rate:g} of capacity"


@dataclass(frozen=True, slots=True)
class Part:
    """Plays of one trace to systems that are up together.

    warm: requests before, which are not counted. requests: of one play. rounds: plays of each load in
    each start of the systems, which come in another order each time. systems: keys of those it is
    played to; None: all.
    """

    name: str
    trace: Trace
    loads: tuple[Load, ...]
    warm: int
    requests: int
    rounds: int
    systems: tuple[str, ...] | None = None

    def asked(self, load: Load) -> int:
        """Requests of one play of this load."""
        return self.requests * load.times

    @property
    def counted(self) -> int:
        """Requests of all its plays to a system in one start."""
        return self.rounds * sum(self.asked(load) for load in self.loads)


@dataclass(frozen=True, slots=True)
class Group:
    """Systems that are up together, and what is played to them.

    starts: how often all of it is done, with systems started anew. quality: questions answered freely,
    for their quality, by RAGCache and the systems that change prompts. overlap: questions asked of a
    large index, with speculation and without.
    """

    systems: tuple[System, ...]
    parts: tuple[Part, ...]
    starts: int = 1
    quality: int = 0
    overlap: int = 0

    def drawn(self, part: Part) -> int:
        """Requests of the trace that a part takes. Each start warms up with the same ones."""
        return part.warm + self.starts * part.counted


@dataclass(frozen=True, slots=True)
class Plan:
    """equality: questions asked in float32. nodes: sizes of the knowledge tree."""

    name: str
    groups: tuple[Group, ...]
    equality: int
    nodes: tuple[int, ...]


MAIN = (OFF, ON, LRU, ARC, FULL)
PEERS = (ON.key, LRU.key, FULL.key)
SKEW = 1.1
"""With it, 3.7% of squad's documents take 60% of the retrievals in 480 requests,
and 4.0% in 2,621; in the paper's MMLU trace 3% do. 1.2 gives 2.0% and 2.2%, kinder to any cache."""
WARM = 160
"""Requests until host memory is full and policies differ. Fewer measure mostly documents never seen
before: after 60, a cache without limits would have 56% of the prompt tokens, after 500 73%."""
ONE_BY_ONE = Load(None, 1)
SUSTAINED = Load(2.0, times=8)
"""More than can be taken without a cache and less than with one, for as long as it takes to see that:
in a play of few requests no queue has the time to grow."""
FLOOD = Load(4.0, times=4)
OVERLOAD = Load(8.0, times=4)
"""More than any system can take, however much of it is cached."""


def rates(*shares: float) -> tuple[Load, ...]:
    return tuple(Load(share) for share in shares)


def ablation_groups(
    trace: Trace, warm: int, requests: int, rounds: int, *, quality: int, overlap: int
) -> tuple[Group, ...]:
    """Each variant beside the full system, where queues are long; few up at a time, for memory."""

    def part(number: int) -> Part:
        return Part(f"{ABLATION} {number}", trace, (FLOOD,), warm, requests, rounds)

    others = (CONTEXTPILOT,) if contextpilot.is_installed() else ()
    return (
        Group((FULL, *ABLATIONS[:4]), (part(1),), overlap=overlap),
        Group((FULL, *ABLATIONS[4:], *others), (part(2),), quality=quality),
    )


def quick(main: str, has_shared: bool) -> Plan:
    """Meant for 5 minutes on two quiet cores."""
    part = Part("main", Trace(main, 2, SKEW), rates(0.5, 2.0), 40, 16, 2)
    return Plan("quick", (Group((OFF, ON, LRU, FULL), (part,)),), 0, (1_000, 10_000))


def usual(main: str, has_shared: bool) -> Plan:
    """Takes 45 to 80 minutes on two cores. has_shared: whether the shared question sets are there.

    The main trace takes four times what device and host hold. Whole articles, where they are there,
    are a second one: prompts over twice as long, all of which the host holds. Both begin where no
    system is saturated: throughput is told by the TTFT of the lowest rate. All systems are started
    twice, as a start of a system differs from the next by more than its rounds do.
    """
    trace = Trace(main, 2, SKEW)
    others = [Trace(main, top_k, SKEW) for top_k in (1, 3, 5)]
    others += [Trace(main, 2, None)]
    if has_shared:
        others += [Trace("multihoprag", 2, None)]
    sweeps = [Part("sweep", one, (ONE_BY_ONE,), 20, 12, 1, PEERS) for one in others]
    first = Part("main", trace, (Load(0.5), SUSTAINED, OVERLOAD), WARM, 10, rounds=2)
    articles = Part("main", Trace(LONG, 1, SKEW), (Load(0.5), FLOOD, OVERLOAD), 60, 10, rounds=1)
    parts = (first, *([articles] if has_shared else []), *sweeps)
    variants = ablation_groups(trace, WARM // 2, 10, 2, quality=60, overlap=40)
    groups = (Group(MAIN, parts, starts=2), *variants)
    return Plan("usual", groups, 24, (1_000, 10_000, 100_000, 1_000_000))


def full(main: str, has_shared: bool) -> Plan:
    """Every dimension on every system: by its number of requests, some four days on two cores."""
    every = (OFF, ON, DEFAULTS, LRU, ARC, FULL)
    loads = rates(0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
    sets = ("squad", "multihoprag", "nq_open", "musique") if has_shared else (main,)
    parts = [
        Part(
            "main" if (name, k, z) == (main, 2, SKEW) else "sweep",
            Trace(name, k, z),
            loads,
            200,
            60,
            1,
        )
        for name in sets
        for k in (1, 2, 3, 5)
        for z in (None, 1.0, SKEW)
    ]
    if has_shared:
        parts += [Part("sweep", Trace(LONG, 1, z), loads, 100, 40, 1) for z in (None, SKEW)]
    trace = Trace(main, 2, SKEW)
    variants = ablation_groups(trace, WARM, 30, 5, quality=300, overlap=100)
    groups = (Group(every, tuple(parts), starts=3), *variants)
    return Plan("full", groups, 100, (1_000, 10_000, 100_000, 1_000_000))


PLANS = {"quick": quick, "usual": usual, "full": full}
