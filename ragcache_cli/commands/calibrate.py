"""`ragcache calibrate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    DTYPE_HELP,
    DTYPES,
    WholeNumber,
    add_corpus,
    add_engine,
    add_max_tokens,
    add_top_k,
    engine_settings,
    share,
)
from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME

SUMMARY = 'find the recompute ratio for reuse="anywhere"'
DESCRIPTION = (
    "Answer your own questions exactly and at several recompute ratios, and compare the answers. The "
    "smallest ratio is kept whose answers are right as often as exact ones, or nearly so; without "
    "accepted answers, whose answers are as alike as two exact runs of the model. Engines with "
    'reuse="anywhere" take it. Exit status 1: none is kept.'
)
RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=DEMO_MODEL,
        metavar="MODEL",
        help=f"a hub id or a model folder (default: {DEMO_MODEL_NAME}, no download)",
    )
    parser.add_argument(
        "--questions",
        type=Path,
        required=True,
        metavar="FILE",
        help="a question a line; a JSON line may have accepted answers",
    )
    add_corpus(parser)
    parser.add_argument(
        "--donors",
        choices=("neighbours", "alone"),
        default="neighbours",
        help="borrow documents from behind their nearest one, or alone (%(default)s)",
    )
    parser.add_argument(
        "--ratios",
        nargs="+",
        type=share,
        default=RATIOS,
        metavar="R",
        help=f"recompute ratios to try, each 0 to 1 ({' '.join(f'{ratio:g}' for ratio in RATIOS)})",
    )
    parser.add_argument(
        "--target",
        type=share,
        default=0.95,
        metavar="SHARE",
        help="of what exact answers reach, what answers at a ratio must reach (%(default)s)",
    )
    parser.add_argument(
        "--count",
        type=WholeNumber(),
        default=100,
        metavar="N",
        help="how many of the questions to ask (%(default)s)",
    )
    parser.add_argument(
        "--gold", type=Path, metavar="FILE", help="accepted answers, a line for each question"
    )
    add_top_k(parser)
    add_max_tokens(parser, 64)
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help=DTYPE_HELP)
    parser.add_argument(
        "--chat-template", metavar="FILE", help="as EngineConfig(chat_template=...)"
    )
    add_engine(parser)
    parser.add_argument(
        "--answers", type=Path, metavar="FILE", help="write all answers there, as JSON lines"
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.calibrating.calibrate import CalibrateSettings, calibrate

    engine = engine_settings(parsed)
    if parsed.chat_template is not None:
        engine["chat_template"] = parsed.chat_template
    settings = CalibrateSettings(
        model=parsed.model,
        questions=parsed.questions,
        corpus=parsed.corpus,
        dtype=parsed.dtype,
        donors=parsed.donors,
        ratios=tuple(parsed.ratios),
        target=parsed.target,
        count=parsed.count,
        top_k=parsed.top_k,
        max_tokens=parsed.max_tokens,
        gold=parsed.gold,
        answers=parsed.answers,
        engine=engine,
    )
    return 0 if calibrate(settings, console) else 1
