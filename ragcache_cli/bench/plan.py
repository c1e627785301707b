"""What is measured, and in which order: a short plan, the usual one, and the whole grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ragcache_cli.bench.systems import ABLATIONS, ARC, DEFAULTS, FULL, LRU, OFF, ON, System

ABLATION = "ablation"
"""How the names of parts begin that compare RAGCache with itself."""


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """How a trace is drawn: from which question set, and how many documents a question gets.

    set: the name of a question set. zipf: see workload.draw_questions.
    """

    set: str
    top_k: int
    zipf: float | None

    @property
    def name(self) -> str:
        drawn = "as they came" if self.zipf is None else f"Zipf {self.zipf:g}"
        return f"{self.set}, top-{self.top_k}, {drawn}"


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive.

    rate: as a share of what vLLM without a cache can take. None: `at_once` requests are under way at a
    time, and the next one starts when one has ended.
    times: how many times the part's number of requests a play has.
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

    warm: how many requests fill the caches first; they are not counted. requests: of one play.
    rounds: how often each load is played in each start of the systems, in another order each time.
    systems: keys of the systems that it is played to. None: all that are up.
    """

    name: str
    trace: TraceSpec
    loads: tuple[Load, ...]
    warm: int
    requests: int
    rounds: int
    systems: tuple[str, ...] | None = None

    def requests_at(self, load: Load) -> int:
        """Count the requests of one play of this load."""
        return self.requests * load.times

    @property
    def counted(self) -> int:
        """How many requests all its plays to one system have, in one start."""
        return self.rounds * sum(self.requests_at(load) for load in self.loads)


@dataclass(frozen=True, slots=True)
class Group:
    """Systems that are up together, and what is played to them.

    starts: how often all of it is done, with the systems started anew. studies: names of further
    studies that ask these systems after the plays of the last start, each with its number of questions.
    """

    systems: tuple[System, ...]
    parts: tuple[Part, ...]
    starts: int = 1
    studies: Mapping[str, int] = field(default_factory=dict)

    def drawn(self, part: Part) -> int:
        """Count the requests of the trace that a part takes. Each start warms up with the same ones."""
        return part.warm + self.starts * part.counted


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a run. equality: how many questions are asked in float32."""

    name: str
    groups: tuple[Group, ...]
    equality: int

    @property
    def systems(self) -> dict[str, System]:
        """Every system that is asked, by key."""
        return {system.key: system for group in self.groups for system in group.systems}


MAIN = (OFF, ON, LRU, ARC, FULL)
PEERS = (ON.key, LRU.key, FULL.key)
SKEW = 1.1
"""With it, 3.7% of squad's documents take 60% of the retrievals in 480 requests,
and 4.0% in 2,621; in the paper's MMLU trace 3% do. 1.2 gives 2.0% and 2.2%, kinder to any cache."""
WARM = 160
"""How many requests it takes until host memory is full and policies differ. Fewer requests measure
mostly documents never seen before: after 60 requests, a cache without limits would have 56% of the prompt
tokens, after 500 requests 73%."""
ONE_BY_ONE = Load(None, 1)
SUSTAINED = Load(2.0, times=8)
"""More than a system takes without a cache and less than with one, for as long as it takes to see that:
in a play of few requests no queue has the time to grow."""
FLOOD = Load(4.0, times=4)
OVERLOAD = Load(8.0, times=4)
"""More than any system can take, however much of it is cached."""


def rates(*shares: float) -> tuple[Load, ...]:
    return tuple(Load(share) for share in shares)


def sweep_part(trace: TraceSpec) -> Part:
    """One question at a time on one more trace, to RAGCache and its nearest peers."""
    return Part("sweep", trace, (ONE_BY_ONE,), 20, 12, 1, PEERS)


def ablation_groups(trace: TraceSpec, warm: int, requests: int, rounds: int) -> tuple[Group, ...]:
    """Put each variant beside the full system, where queues are long; few at a time, for memory."""

    def part(number: int) -> Part:
        return Part(f"{ABLATION} {number}", trace, (FLOOD,), warm, requests, rounds)

    return (
        Group((FULL, *ABLATIONS[:4]), (part(1),)),
        Group((FULL, *ABLATIONS[4:]), (part(2),)),
    )


def quick(main: str) -> Plan:
    """Plan 5 minutes on two quiet cores. main: the name of the question set."""
    part = Part("main", TraceSpec(main, 2, SKEW), rates(0.5, 2.0), 40, 16, 2)
    return Plan("quick", (Group((OFF, ON, LRU, FULL), (part,)),), 0)


def usual(main: str) -> Plan:
    """Plan about an hour on two cores. main: the name of the question set.

    At the lowest rate of the main trace no system is saturated: throughput is measured from its TTFT.
    All systems are started twice, as two starts of a system differ by more than two rounds of a start.
    """
    trace = TraceSpec(main, 2, SKEW)
    others = [TraceSpec(main, top_k, SKEW) for top_k in (1, 3, 5)] + [TraceSpec(main, 2, None)]
    first = Part("main", trace, (Load(0.5), SUSTAINED, OVERLOAD), WARM, 10, rounds=2)
    parts = (first, *map(sweep_part, others))
    groups = (Group(MAIN, parts, starts=2), *ablation_groups(trace, WARM // 2, 10, 2))
    return Plan("usual", groups, 24)


GRID_LOADS = rates(0.25, 0.5, 1.0, 1.5, 2.0, 3.0)


def full(main: str, sets: Sequence[str] = ()) -> Plan:
    """Plan every dimension on every system: days on two cores.

    main: the name of the question set. sets: all that are asked, `main` alone by default.
    """
    every = (OFF, ON, DEFAULTS, LRU, ARC, FULL)
    parts = [
        Part(
            "main" if (name, k, z) == (main, 2, SKEW) else "sweep",
            TraceSpec(name, k, z),
            GRID_LOADS,
            200,
            60,
            1,
        )
        for name in sets or (main,)
        for k in (1, 2, 3, 5)
        for z in (None, 1.0, SKEW)
    ]
    trace = TraceSpec(main, 2, SKEW)
    groups = (Group(every, tuple(parts), starts=3), *ablation_groups(trace, WARM, 30, 5))
    return Plan("full", groups, 100)


MakePlan = Callable[[str], Plan]
"""Makes a plan from the name of the question set that is asked most."""
PLANS: dict[str, MakePlan] = {"quick": quick, "usual": usual, "full": full}
