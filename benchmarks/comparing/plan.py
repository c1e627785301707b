"""Plans of what to measure, in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from comparing.systems import ABLATIONS, ANYWHERE, ARC, FULL, LRU, OFF, ON, SYSTEMS, System

MAIN_PART, SWEEP, ABLATION = "main", "sweep", "ablation"
"""Names of parts; those that compare RAGCache with itself have a number behind theirs."""
ANYWHERE_PART, WARMED_PART = "anywhere", "anywhere, documents warmed"
"""The names of the parts that compare exact with approximate reuse."""
SQUAD, ARTICLES, OTHER_SET = "squad", "long", "nq_open"
"""Shared question sets: squad's passages, its articles joined by title, and another set's passages."""


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """How to draw a trace: from which question set, and with how many documents for each question.

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
    """The way in which requests arrive.

    rate: requests a second, as a share of the capacity of vLLM without a cache. None: `at_once`
      requests are under way at a time, and the next one starts when one has ended.
    times: by which factor to multiply the part's number of requests.
    """

    rate: float | None
    at_once: int = 1
    times: int = 1

    @property
    def name(self) -> str:
        return f"{self.at_once} at a time" if self.rate is None else f"at {self.rate:g} of capacity"


@dataclass(frozen=True, slots=True)
class Part:
    """Plays of one trace to systems that run at the same time.

    warm: how many requests fill the caches first; they are not counted. Systems without host memory
      get the last DEVICE_WARM of them. requests: of one play.
    rounds: how often each load is played in each start of the systems, in another order each time.
    systems: keys of the systems to play to. None: all systems of the group.
    is_warmed: whether RAGCache's systems first prefill every document that the part's questions find, as
      a user does while indexing.
    """

    name: str
    trace: TraceSpec
    loads: tuple[Load, ...]
    warm: int
    requests: int
    rounds: int
    systems: tuple[str, ...] | None = None
    is_warmed: bool = False

    def requests_at(self, load: Load) -> int:
        """Count the requests of one play of this load."""
        return self.requests * load.times

    @property
    def counted(self) -> int:
        """How many requests all plays to one system have in one start, without those that warm up."""
        return self.rounds * sum(self.requests_at(load) for load in self.loads)


@dataclass(frozen=True, slots=True)
class Group:
    """Systems that run at the same time, and the parts to play to them.

    starts: how often to start the systems and play all parts. likened: question sets whose answers are
      compared with those of vLLM in full, after the plays of the last start.
    memory_times: by which factor to multiply the device cache and the host cache of all its systems.
    """

    systems: tuple[System, ...]
    parts: tuple[Part, ...]
    starts: int = 1
    likened: tuple[str, ...] = ()
    memory_times: int = 1

    def drawn(self, part: Part) -> int:
        """Count the requests that a part takes from its trace. All starts share those that warm up."""
        return part.warm + self.starts * part.counted


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a whole run. checks_float32: whether to compare answers in float32, too."""

    name: str
    groups: tuple[Group, ...]
    checks_float32: bool = False

    def only(self, keys: Sequence[str]) -> Plan:
        """Return the plan for these systems. The first group gets all, even those that it has not."""
        wanted = tuple(SYSTEMS[key] for key in dict.fromkeys(keys))
        groups = [replace(self.groups[0], systems=wanted)]
        for group in self.groups[1:]:
            kept = tuple(one for one in group.systems if one in wanted)
            groups += [replace(group, systems=kept)] if len(kept) > 1 else []
        return Plan(self.name, tuple(groups))


MAIN = (OFF, ON, LRU, ARC, FULL)
PEERS = (ON.key, LRU.key, FULL.key)
SKEW = 1.1
"""The Zipf exponent. With 1.1, 3.7% of squad's documents take 60% of the retrievals in 480 requests,
and 4.0% in 2,621; in the paper's MMLU trace 3% do. 1.2 gives 2.0% and 2.2%, easier for any cache."""
WARM = 100
"""How many requests it takes until host memory is full and policies differ. Shorter traces measure
mostly documents that were never seen before: after 60 requests, a cache without limits would have 56%
of the prompt tokens, after 500 requests 73%."""
DEVICE_WARM = 30
"""How many requests fill device memory in the usual plan, of either trace."""
STARTS = 5
"""How often the usual plan starts every system. Two starts of one system differ by more than two rounds
of one start, up to a fifth; a median of five can tell a few percent apart."""
ONE_BY_ONE = Load(None, 1)
SUSTAINED = Load(2.0, times=3)
"""A rate above the capacity without a cache and below that with one. A play needs many requests to show
this, because a queue needs time to grow."""
FLOOD = Load(4.0, times=4)
OVERLOAD = Load(8.0, times=4)
"""A rate above any system's capacity, however many tokens are cached."""


def rates(*shares: float) -> tuple[Load, ...]:
    return tuple(Load(share) for share in shares)


def anywhere_parts(trace: TraceSpec) -> tuple[Part, ...]:
    """Ask questions of a trace with nothing warmed, and with all documents warmed."""
    loads = (ONE_BY_ONE, Load(None, 4))
    return (
        Part(ANYWHERE_PART, trace, loads, 16, 8, 1),
        Part(WARMED_PART, trace, loads, 0, 8, 1, is_warmed=True),
    )


def anywhere_group(main: str, memory_times: int) -> Group:
    """Compare exact and approximate reuse on questions as they came, with and without warming.

    Prompts have five documents, so that most documents are not the first one. A borrowing prompt needs
    room for its donors too.
    """
    return Group(
        (OFF, ON, FULL, *ANYWHERE),
        anywhere_parts(TraceSpec(main, 5, None)),
        likened=(main,),
        memory_times=memory_times,
    )


def quick(main: str) -> Plan:
    """Plan 14 minutes on two quiet cores. main: the name of the question set."""
    part = Part(MAIN_PART, TraceSpec(main, 2, SKEW), rates(0.5, 2.0), 40, 16, 2)
    return Plan("quick", (Group((OFF, ON, LRU, FULL), (part,)), anywhere_group(main, 4)))


def usual(main: str) -> Plan:
    """Plan about 45 minutes on two cores. main: the name of the question set.

    On squad, the main trace needs four times the memory of device and host. Whole articles are a second
    trace: its prompts are over twice as long, and the host holds all of them, so that one policy of the
    host offload stands for all. Many starts with short plays tell more than few with long ones.
    """
    trace = TraceSpec(main, 2, SKEW)
    played = [Part(MAIN_PART, trace, (Load(0.5), SUSTAINED, OVERLOAD), WARM, 6, rounds=1)]
    if main == SQUAD:
        loads = (Load(0.5), replace(OVERLOAD, times=2))
        systems = tuple(one.key for one in MAIN if one is not ARC)
        articles = TraceSpec(ARTICLES, 1, SKEW)
        played.append(Part(MAIN_PART, articles, loads, 30, 6, rounds=1, systems=systems))
    played.append(Part(SWEEP, TraceSpec(main, 2, None), (ONE_BY_ONE,), 6, 6, 1, PEERS))
    groups = (Group(MAIN, tuple(played), starts=STARTS), anywhere_group(main, 6))
    return Plan("usual", groups, checks_float32=True)


def anywhere(main: str) -> Plan:
    """Plan reuse at any position alone, on squad and on a second set, as they came and with Zipf weights.

    main: as in `usual`; of another set, only as it came.
    """
    group = anywhere_group(main, 6)
    if main == SQUAD:
        traces = (
            TraceSpec(main, 5, SKEW),
            TraceSpec(OTHER_SET, 5, None),
            TraceSpec(OTHER_SET, 5, SKEW),
        )
        more = [part for one in traces for part in anywhere_parts(one)]
        group = replace(group, parts=(*group.parts, *more), likened=(main, OTHER_SET))
    return Plan("anywhere", (group,))


def parts(main: str) -> Plan:
    """Plan RAGCache with one part changed at a time under long queues, about 9 minutes.

    main: as in `usual`. Few systems run at a time, to save memory.
    """

    def group(number: int, changed: tuple[System, ...]) -> Group:
        trace = TraceSpec(main, 2, SKEW)
        return Group((FULL, *changed), (Part(f"{ABLATION} {number}", trace, (FLOOD,), 50, 10, 1),))

    return Plan("parts", (group(1, ABLATIONS[:4]), group(2, ABLATIONS[4:])))


PLANS: dict[str, Callable[[str], Plan]] = {
    "quick": quick,
    "usual": usual,
    "anywhere": anywhere,
    "parts": parts,
}
"""Each makes a plan from the name of the main question set."""
