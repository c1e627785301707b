"""`ragcache demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import WholeNumber, add_max_tokens, add_model
from ragcache_cli.questions import QUESTIONS

SUMMARY = "compare RAGCache with stock vLLM on this machine"
DESCRIPTION = (
    "Ask questions about Python through a LangChain chain on stock vLLM, through the same "
    "chain on RAGCache and through LlamaIndex on RAGCache; compare times and answers."
)
DEMO_QUESTIONS = 16
"""As many questions as two cores answer three times in four minutes, preparations included."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--questions",
        type=WholeNumber(len(QUESTIONS)),
        default=DEMO_QUESTIONS,
        metavar="N",
        help=f"ask the first N of {len(QUESTIONS)} (default: %(default)s)",
    )
    add_model(parser)
    add_max_tokens(parser, 48)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="FOLDER",
        help="where ttft.png and demo.json go (default: %(default)s)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.chain_comparison import DemoSettings, compare_chains

    compare_chains(
        DemoSettings(
            parsed.model, parsed.dtype, parsed.questions, parsed.max_tokens, parsed.output
        ),
        console,
    )
    return 0
