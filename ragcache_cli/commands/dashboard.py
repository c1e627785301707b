"""`ragcache dashboard`."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from ragcache_cli.commands.argument_types import add_server

SUMMARY = "serve a live page of the cache of a server or a fleet"
DESCRIPTION = (
    "Serve a live page of a server or a fleet of `ragcache serve`: hit ratios, evictions, the queue, the "
    "disk. With an operator's key in RAGCACHE_OPERATOR_KEY it also shows the knowledge tree "
    "and the last requests. An engine in a program of yours has engine.dashboard()."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument(
        "--port", type=int, default=8077, help="where it listens; 0: any that is free (%(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on; the page has no password (%(default)s)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.server_access import OPERATOR_KEY, observer_of
    from ragcache_engine.dashboard import open_dashboard

    observer = observer_of(parsed)
    with open_dashboard(observer, parsed.host, parsed.port) as dashboard:
        console.print(
            f"The dashboard is at {escape(dashboard.url)}; Ctrl-C ends it", soft_wrap=True
        )
        if not observer.has_key:
            console.print(f"Without {OPERATOR_KEY} it shows no documents and no requests")
        if problem := observer.observe(with_tree=observer.has_key).problem:
            console.print(f"[yellow]{escape(problem)}[/yellow]", soft_wrap=True)
            console.print("The page goes on asking, and says so too")
        dashboard.wait()
    return 0
