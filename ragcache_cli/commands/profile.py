"""`ragcache profile`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import WholeNumber, add_engine, add_model, engine_settings

SUMMARY = "measure how long prefill takes on this machine"
DESCRIPTION = (
    "Time the prefill of prompts of several lengths, with more and less of them cached. The "
    "result tells RAGCache what each document would cost to compute again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--backend",
        choices=("auto", "vllm", "memory"),
        default="auto",
        help="memory: the made-up times of no model, for tests (default: %(default)s)",
    )
    add_engine(parser)
    parser.add_argument(
        "--repeats",
        type=WholeNumber(),
        default=3,
        metavar="N",
        help="timings of each pair of lengths, of which the median counts (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter prompts: a rough profile"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where the profile goes (default: in RAGCache's cache folder, named for the model)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.prefill_profile import ProfileSettings, profile_prefill

    profile_prefill(
        ProfileSettings(
            model=parsed.model,
            backend=parsed.backend,
            dtype=parsed.dtype,
            repeats=parsed.repeats,
            quick=parsed.quick,
            output=parsed.output,
            engine=engine_settings(parsed),
        ),
        console,
    )
    return 0
