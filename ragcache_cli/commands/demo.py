"""`ragcache demo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    WholeNumber,
    add_max_tokens,
    add_model,
    share,
    size_in_bytes,
)

SUMMARY = "compare RAGCache with stock vLLM on this machine"
DESCRIPTION = (
    "Ask questions about Python, or your own about your own files, through a LangChain chain on stock "
    "vLLM, and through the same chain on RAGCache: exact, and with documents reused at any position. "
    "Compare times and answers."
)
DEMO_QUESTIONS = 6
"""One for each order in which three sides can be asked; all in all three minutes on two cores."""
DEMO_RATIO = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="your own files, as in ask")
    parser.add_argument(
        "--questions",
        type=Path,
        metavar="FILE",
        help='a question a line, or {"question": ...}, asked of --corpus',
    )
    parser.add_argument(
        "--first",
        type=WholeNumber(),
        default=DEMO_QUESTIONS,
        metavar="N",
        help="ask the first N questions, and half of them again (%(default)s)",
    )
    parser.add_argument(
        "--framework",
        choices=("langchain", "llamaindex"),
        default="langchain",
        help="of the chains on RAGCache; stock vLLM's is LangChain's (%(default)s)",
    )
    parser.add_argument(
        "--recompute-ratio",
        type=share,
        default=DEMO_RATIO,
        metavar="R",
        help="the share of a borrowed passage to compute anew, 0 to 1 (%(default)s)",
    )
    add_model(parser)
    parser.set_defaults(dtype="float32")  # there, exact answers are equal token for token
    add_max_tokens(parser, 24)
    parser.add_argument(
        "--device-cache",
        type=size_in_bytes,
        metavar="SIZE",
        help="device memory of either model's cache (three of the longest prompts)",
    )
    parser.add_argument(
        "--host-cache",
        type=size_in_bytes,
        metavar="SIZE",
        help="host memory of RAGCache's cache, and as much disk (40,000 tokens)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="FOLDER",
        help="where report.txt, ttft.png and demo.json go (default: %(default)s)",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.chain_comparison import DemoSettings, compare_chains, questions_about

    compare_chains(
        DemoSettings(
            model=parsed.model,
            dtype=parsed.dtype,
            framework=parsed.framework,
            corpus=parsed.corpus,
            questions=questions_about(parsed.corpus, parsed.questions)[: parsed.first],
            max_tokens=parsed.max_tokens,
            recompute_ratio=parsed.recompute_ratio,
            device_bytes=parsed.device_cache,
            host_bytes=parsed.host_cache,
            output=parsed.output,
        ),
        console,
    )
    return 0
