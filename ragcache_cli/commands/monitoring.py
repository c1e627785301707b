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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where both files go")


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.errors import CommandError

    try:
        parsed.folder.mkdir(parents=True, exist_ok=True)
        for shipped in sorted(files("ragcache_cli").joinpath("monitoring").iterdir(), key=str):
            target = parsed.folder / shipped.name
            target.write_bytes(shipped.read_bytes())
            console.print(str(target), soft_wrap=True)
    except OSError as error:
        raise CommandError(f"the folder cannot be written: {error}; name another one") from error
    return 0
