"""`ragcache top`."""

from __future__ import annotations

import argparse

from rich.console import Console

from ragcache_cli.commands.argument_types import WholeNumber, add_server

SUMMARY = "watch the cache of a server or a fleet on the terminal"
DESCRIPTION = (
    "Show hit ratios by tier, evictions, the queue, the disk and the last requests of a server or a "
    "fleet of `ragcache serve`, or the metrics of a program that embeds an engine. The environment "
    "variable RAGCACHE_OPERATOR_KEY, with a key of an operator's, shows documents and requests too."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--every",
        type=WholeNumber(),
        default=2,
        metavar="SECONDS",
        help="how long to wait before each new look (%(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print the figures once, and end")


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.server_access import observer_of
    from ragcache_cli.top import show_once, watch

    observer = observer_of(parsed)
    if parsed.once:
        return 0 if show_once(observer, console) else 1
    watch(observer, parsed.every, console)
    return 0
