"""`ragcache doctor`."""

from __future__ import annotations

import argparse

from rich.console import Console

from ragcache_cli.models import DEMO_MODEL

SUMMARY = "tell whether and how an engine would start"
DESCRIPTION = "Look at this machine, the packages and the model; start nothing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="ID_OR_FOLDER", default=DEMO_MODEL)


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.diagnosis import diagnose

    return diagnose(parsed.model, console)
