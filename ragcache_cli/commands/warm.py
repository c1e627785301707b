"""`ragcache warm`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    WholeNumber,
    add_corpus,
    add_disk_cache_place,
    add_engine,
    add_model,
    add_reuse,
    add_top_k,
    engine_settings,
    reuse_settings,
)

SUMMARY = "prefill what a query log asks for, onto disk"
DESCRIPTION = (
    "Search for each question of a query log, and prefill the sets of documents found most often "
    "into a disk cache. Engines with the same model and disk cache start with them. With --reuse "
    "anywhere, prefill every document of the corpus, or of those sets, as prompts will borrow it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_corpus(parser)
    parser.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help="a question a line; only --reuse anywhere does without, and takes all documents",
    )
    parser.add_argument(
        "--disk-cache", default="10GiB", metavar="SIZE", help="how much disk to fill (%(default)s)"
    )
    add_disk_cache_place(parser)
    parser.add_argument(
        "--top",
        type=WholeNumber(),
        default=100,
        metavar="N",
        help="how many sets of documents, those found most often first (%(default)s)",
    )
    add_top_k(parser)
    add_reuse(parser)
    add_engine(parser)
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="costs as `ragcache profile` measured them"
    )
    add_model(parser)
    parser.add_argument(
        "--backend",
        choices=("auto", "vllm", "memory"),
        default="auto",
        help="memory: no model, for trying out a log (%(default)s)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.disk_warming import WarmSettings, warm_disk

    engine = {
        "disk_cache": parsed.disk_cache,
        **engine_settings(parsed),
        **reuse_settings(parsed),
    }
    if parsed.profile:
        engine["cost_profile"] = parsed.profile
    if parsed.disk_cache_dir:
        engine["disk_cache_dir"] = parsed.disk_cache_dir
    if parsed.shared_cache:
        engine["shared_cache"] = parsed.shared_cache
    if parsed.disk_cache_key:
        engine["disk_cache_key"] = parsed.disk_cache_key
    settings = WarmSettings(
        corpus=parsed.corpus,
        questions=parsed.questions,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        top_k=parsed.top_k,
        top=parsed.top,
        engine=engine,
    )
    warm_disk(settings, console)
    return 0
