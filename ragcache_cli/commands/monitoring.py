"""`ragcache monitoring`."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from rich.console import Console

SUMMARY = "write a Grafana board and alert rules for Prometheus"
DESCRIPTION = (
    "Write ragcache-grafana.json, a board to import into Grafana, and ragcache-rules.yml, alert rules "
    "for Prometheus, into a folder."
)

OTHER_FOLDER = "name another one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where both files go")


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.folders import make_folder, write_whole

    make_folder(parsed.folder, OTHER_FOLDER)
    for shipped in sorted(files("ragcache_cli").joinpath("monitoring").iterdir(), key=str):
        target = parsed.folder / shipped.name
        write_whole(target, shipped.read_text(encoding="utf-8"), OTHER_FOLDER)
        console.print(str(target), soft_wrap=True)
    return 0
