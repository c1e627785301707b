"""`ragcache serve`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    WholeNumber,
    add_reuse,
    reuse_settings,
    size_in_bytes,
)
from ragcache_cli.models import DEMO_MODEL
from ragcache_engine.knowledge import DEFAULT_POLICY, POLICIES

SUMMARY = "start vLLM's OpenAI-compatible server with RAGCache"
DESCRIPTION = (
    "Start vLLM's own OpenAI-compatible server with RAGCache's knowledge tree over its device "
    "memory, a host tier and a disk tier. Arguments after -- go to `vllm serve` as they are: "
    "ragcache serve MODEL --disk-cache 20GiB -- --port 8001 --dtype float16"
)
ENGINE_SETTINGS = (
    "host_cache",
    "disk_cache",
    "disk_cache_dir",
    "policy",
    "reorder_window",
    "cache_depth",
)
"""Fields of EngineConfig with an argument of the same name. One that is not given keeps its default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--host-cache", metavar="SIZE", help="such as 8GiB (see EngineConfig)")
    parser.add_argument("--disk-cache", metavar="SIZE", help="such as 50GiB (default: none)")
    parser.add_argument("--disk-cache-dir", type=Path, metavar="FOLDER")
    parser.add_argument("--policy", choices=sorted(POLICIES), default=DEFAULT_POLICY)
    parser.add_argument("--reorder-window", type=WholeNumber(), metavar="N")
    parser.add_argument("--cache-depth", type=WholeNumber(), metavar="N")
    add_reuse(parser, with_donors=False)
    parser.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="whose API key is whose (see the guide to servers)",
    )
    parser.add_argument(
        "--max-body",
        type=size_in_bytes,
        metavar="SIZE",
        help="the most bytes of a request (default: 32MiB)",
    )
    parser.add_argument(
        "--max-requests",
        type=WholeNumber(),
        metavar="N",
        help="the most requests at a time; more are refused (default: no limit)",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the command instead of running it"
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.models import demo_model
    from ragcache_cli.server import (
        DoorSettings,
        become_server,
        build_server_command,
        require_usable_keys,
    )

    chosen = {name: getattr(parsed, name) for name in ENGINE_SETTINGS}
    settings = {name: value for name, value in chosen.items() if value is not None}
    settings |= reuse_settings(parsed)
    settings["model"] = str(demo_model()) if parsed.model == DEMO_MODEL else parsed.model
    doors = DoorSettings(parsed.keys, parsed.max_body, parsed.max_requests)
    require_usable_keys(doors, parsed.vllm_arguments, is_shown=parsed.show)
    if parsed.show:
        command = build_server_command(settings, parsed.vllm_arguments)
        told = [f"{name}={value}" for name, value in doors.environment().items()]
        console.print(shlex.join(["env", *told, *command] if told else command), soft_wrap=True)
    else:
        become_server(settings, doors, parsed.vllm_arguments)
    return 0
