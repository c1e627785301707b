"""The plans of the full report: those of `ragcache bench` with more question sets, peers and studies."""

from __future__ import annotations

from dataclasses import replace

from ragcache_cli.bench import plan
from ragcache_cli.bench.plan import (
    CLOSENESS,
    GRID_LOADS,
    OVERLOAD,
    SKEW,
    Group,
    Load,
    Part,
    Plan,
    anywhere_parts,
)
from ragcache_cli.bench.plan import TraceSpec as Trace
from ragcache_cli.bench.systems import ARC
from studies import contextpilot_order
from studies.shared_sets import LONG, MAIN_SET, SETS

QUALITY, HIDDEN_SEARCH, GROWTH = "quality", "overlap", "growth"
"""Names of the studies, in plans and in raw figures."""
OTHER_SET = "nq_open"
"""The question set on which reuse at any position is measured besides the main one."""
OTHER_CLOSENESS = f"{CLOSENESS}, {OTHER_SET}"
"""The name of the study that compares approximate answers to its questions."""
TREE_NODES = {
    "quick": (1_000, 10_000),
    "usual": (),
    "anywhere": (),
    "parts": (1_000, 10_000, 100_000, 1_000_000),
    "full": (1_000, 10_000, 100_000, 1_000_000),
}
"""By plan: the sizes to measure at, in documents of the tree and vectors of the index."""


def usual(main: str) -> Plan:
    """Plan about 45 minutes on two cores. main: the name of the question set.

    On squad, the main trace needs four times the memory of device and host. Whole articles are a second
    trace: its prompts are over twice as long, and the host holds all of them, so that one policy of the
    host offload stands for all.
    """
    base = plan.usual(main)
    if main != MAIN_SET:
        return base
    first, *sweeps = base.groups[0].parts
    loads = (Load(0.5), replace(OVERLOAD, times=2))
    systems = tuple(one.key for one in base.groups[0].systems if one is not ARC)
    articles = Part("main", Trace(LONG, 1, SKEW), loads, 30, 6, rounds=1, systems=systems)
    return _with_first_group(base, parts=(first, articles, *sweeps))


def parts(main: str) -> Plan:
    """Plan RAGCache with parts changed, and the studies that need them: about 10 minutes on two cores."""
    return _with_studies(plan.parts(main), hidden_search=40, quality=40)


def anywhere(main: str) -> Plan:
    """Plan reuse at any position on two question sets, as they came and with Zipf weights."""
    base = plan.anywhere(main)
    if main != MAIN_SET:
        return base
    (group,) = base.groups
    traces = (Trace(main, 5, SKEW), Trace(OTHER_SET, 5, None), Trace(OTHER_SET, 5, SKEW))
    more = [part for one in traces for part in anywhere_parts(one, requests=8, rounds=1)]
    studies = {**group.studies, OTHER_CLOSENESS: group.studies[CLOSENESS]}
    return replace(base, groups=(replace(group, parts=(*group.parts, *more), studies=studies),))


def full(main: str) -> Plan:
    """Plan every dimension on every system: by its number of requests, some four days on two cores."""
    if main != MAIN_SET:
        return _with_studies(plan.full(main), hidden_search=100, quality=300)
    base = plan.full(main, SETS)
    articles = tuple(
        Part("sweep", Trace(LONG, 1, zipf), GRID_LOADS, 100, 40, 1) for zipf in (None, SKEW)
    )
    base = _with_first_group(base, parts=(*base.groups[0].parts, *articles))
    return _with_studies(base, hidden_search=100, quality=300)


def _with_first_group(base: Plan, *, parts: tuple[Part, ...]) -> Plan:
    first, *others = base.groups
    return replace(base, groups=(replace(first, parts=parts), *others))


def _with_studies(base: Plan, *, hidden_search: int, quality: int) -> Plan:
    """Let the last two groups, RAGCache's variants, answer the studies' questions too.

    ContextPilot is compared with the variants that change prompts, where it is installed.
    """
    *first, policies, orders = base.groups
    peers = (contextpilot_order.CONTEXTPILOT,) if contextpilot_order.is_installed() else ()
    groups: tuple[Group, ...] = (
        *first,
        replace(policies, studies={HIDDEN_SEARCH: hidden_search}),
        replace(orders, systems=(*orders.systems, *peers), studies={QUALITY: quality}),
    )
    return replace(base, groups=groups)


FULL_PLANS: dict[str, plan.MakePlan] = {
    "quick": plan.quick,
    "usual": usual,
    "anywhere": anywhere,
    "parts": parts,
    "full": full,
}
