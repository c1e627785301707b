"""`ragcache simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import WholeNumber, share
from ragcache_engine.fleet import ROUTINGS
from ragcache_engine.knowledge import DEFAULT_POLICY, DOCUMENT_ORDERS, POLICIES

SUMMARY = "tell how much memory and which policy would pay"
DESCRIPTION = (
    "Replay retrievals through the knowledge tree, in several sizes, policies and document "
    "orders: how much memory is needed, and would reordering documents help? Takes a trace "
    '(a line a request: {"documents": ["d1", "d7"], "tokens": [120, 310]}), or a query log '
    "with the corpus it asks."
)
SHOWN_CAPACITIES = ("1%", "2%", "5%", "10%", "20%", "50%", "100%")
SHOWN_POLICIES = ("lru", "lfu", "pgdsf", DEFAULT_POLICY)
"""The policies to replay unless --policy names others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="a trace, JSON Lines")
    source.add_argument(
        "--questions", type=Path, metavar="FILE", help="a query log, a question a line"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FOLDER", help="what the questions are asked of, as in ask"
    )
    parser.add_argument(
        "--top-k", type=WholeNumber(), metavar="K", help="only the first K documents (all; 3)"
    )
    parser.add_argument(
        "--capacity",
        nargs="+",
        metavar="SIZE",
        help="of device memory: tokens, or a share of all documents such as 5%% (default: 1%% to 100%%)",
    )
    for tier in ("host", "disk"):
        parser.add_argument(
            f"--{tier}-cache", metavar="SIZE", help=f"of a {tier} tier below it, likewise (none)"
        )
    parser.add_argument(
        "--block-size",
        type=WholeNumber(),
        default=16,
        metavar="N",
        help="tokens of a block, the least that is cached (default: %(default)s)",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        choices=sorted(POLICIES),
        metavar="NAME",
        help=f"of eviction: {', '.join(sorted(POLICIES))} (default: {', '.join(SHOWN_POLICIES)})",
    )
    parser.add_argument(
        "--order",
        nargs="+",
        choices=sorted(DOCUMENT_ORDERS),
        default=["retrieved"],
        metavar="NAME",
        help="of the documents in a prompt: retrieved, canonical, cached (default: retrieved)",
    )
    parser.add_argument(
        "--recompute-ratio",
        nargs="+",
        type=share,
        default=[],
        metavar="R",
        help='also reuse at any position (reuse="anywhere"), computing these shares anew (none)',
    )
    parser.add_argument(
        "--system-tokens",
        type=int,
        default=32,
        metavar="N",
        help="of the text before the documents (default: %(default)s)",
    )
    parser.add_argument(
        "--model", metavar="ID_OR_FOLDER", help="show sizes in bytes of this model's tensors"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="costs as `ragcache profile` measured them"
    )
    fleet = parser.add_argument_group("many replicas, instead of the questions above")
    fleet.add_argument(
        "--replicas",
        nargs="+",
        type=WholeNumber(),
        metavar="N",
        help="replay on fleets of so many engines, each with room for --capacity (default there: 10%%)",
    )
    fleet.add_argument(
        "--routing",
        nargs="+",
        choices=ROUTINGS,
        default=list(ROUTINGS),
        metavar="NAME",
        help=f"how prompts find a replica: {', '.join(ROUTINGS)} (default: all)",
    )
    fleet.add_argument(
        "--store",
        type=float,
        default=0.0,
        metavar="TOKENS",
        help="how many tokens a second a store that all replicas share brings to each: at 128 KiB a "
        "token 10 Gbit/s bring 9500 (there is none)",
    )
    fleet.add_argument(
        "--answer",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long an answer takes behind its first token (default: %(default)s)",
    )
    fleet.add_argument(
        "--requests",
        type=WholeNumber(),
        metavar="N",
        help="draw so many requests for each replica, with Zipf weights (the log, as it is)",
    )
    fleet.add_argument(
        "--load",
        type=share,
        default=0.7,
        metavar="SHARE",
        help="how busy the fleet would be without a cache (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("simulate-output"),
        metavar="FOLDER",
        help="where the table and the plots go (default: %(default)s)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.simulate import SimulateSettings, cost_profile, kv_bytes_of, simulate
    from ragcache_cli.trace_files import trace_from

    if parsed.replicas:
        return _run_fleet(parsed, console)
    settings = SimulateSettings(
        capacities=tuple(parsed.capacity or SHOWN_CAPACITIES),
        policies=tuple(parsed.policy or SHOWN_POLICIES),
        orders=tuple(parsed.order),
        system_tokens=max(0, parsed.system_tokens),
        kv_token_bytes=kv_bytes_of(parsed.model) if parsed.model else None,
        output=parsed.output,
        block_tokens=parsed.block_size,
        host_cache=parsed.host_cache,
        disk_cache=parsed.disk_cache,
        ratios=tuple(parsed.recompute_ratio),
    )
    profile = cost_profile(parsed.profile)
    trace = trace_from(parsed.trace, parsed.questions, parsed.corpus, parsed.top_k, console)
    simulate(trace, profile, settings, console)
    return 0


def _run_fleet(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.simulate import cost_profile, kv_bytes_of
    from ragcache_cli.simulate_fleet import FLEET_CAPACITY, FleetSettings, simulate_fleet
    from ragcache_cli.trace_files import trace_from

    settings = FleetSettings(
        replicas=tuple(parsed.replicas),
        routings=tuple(parsed.routing),
        capacities=tuple(parsed.capacity or (FLEET_CAPACITY,)),
        policy=(parsed.policy or [DEFAULT_POLICY])[0],
        system_tokens=max(0, parsed.system_tokens),
        kv_token_bytes=kv_bytes_of(parsed.model) if parsed.model else None,
        output=parsed.output,
        block_tokens=parsed.block_size,
        requests=parsed.requests,
        store_tokens_per_s=parsed.store,
        answer_s=parsed.answer,
        load=parsed.load,
    )
    profile = cost_profile(parsed.profile)
    trace = trace_from(parsed.trace, parsed.questions, parsed.corpus, parsed.top_k, console)
    simulate_fleet(trace, profile, settings, console)
    return 0
