"""What every program here does alike: read a command line, and keep its report with the raw figures."""

from __future__ import annotations

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ragcache_cli.machine import Machine


def command_line(description: str | None) -> ArgumentParser:
    """Make a parser whose help has the description as it stands."""
    return ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)


def keep(out: Path | None, name: str, lines: Iterable[str], raw: Any) -> None:
    """Write the lines to NAME.md and the raw figures to NAME.json in the folder; nothing without one."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
        (out / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def describe_machine(machine: Machine) -> dict[str, Any]:
    """Return what is known of the machine, with the name of its processor, or "" if that is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {**asdict(machine), "cpu": next(names, "")}
