"""`ragcache ask`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from ragcache_cli.commands.argument_types import (
    add_corpus,
    add_engine,
    add_max_tokens,
    add_model,
    add_reuse,
    engine_settings,
    picture_path,
    reuse_settings,
)

SUMMARY = "ask questions about a folder of your own files"
DESCRIPTION = (
    "Answer questions from the txt, md, rst, html, jsonl, pdf and docx files of a folder. The index is "
    "kept in the folder, and only changed files are read again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "questions",
        nargs="*",
        metavar="QUESTION",
        help="none: read them from standard input, a line each",
    )
    add_corpus(parser)
    add_model(parser)
    parser.add_argument(
        "--backend",
        choices=("auto", "vllm", "memory"),
        default="auto",
        help="memory: no model, made-up answers, for trying out a corpus (default: %(default)s)",
    )
    parser.add_argument("--top-k", type=int, default=3, metavar="K", help="passages a question (3)")
    add_max_tokens(parser, 200)
    add_reuse(parser, answers=True)
    add_engine(parser)
    parser.add_argument(
        "--timeline",
        nargs="?",
        type=picture_path,
        const=True,
        metavar="FILE.png|FOLDER/",
        help="show what happened between question and first token; with a file or a folder, draw it too",
    )


def run(parsed: argparse.Namespace, console: Console) -> int:
    from ragcache_cli.answering import AskSettings, answer_questions

    settings = AskSettings(
        questions=tuple(parsed.questions),
        corpus=parsed.corpus,
        model=parsed.model,
        backend=parsed.backend,
        dtype=parsed.dtype,
        top_k=parsed.top_k,
        max_tokens=parsed.max_tokens,
        timeline=parsed.timeline is not None,
        pictures=parsed.timeline if isinstance(parsed.timeline, Path) else None,
        engine={**engine_settings(parsed), **reuse_settings(parsed)},
        options=frozenset(vars(parsed)),
    )
    return 1 if answer_questions(settings, console) else 0
