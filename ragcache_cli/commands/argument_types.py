"""Argument types and arguments that several commands share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME

DTYPES = ("auto", "float32", "bfloat16", "float16")


class WholeNumber:
    """A type for argparse: a whole number from 1, and up to `most` if that is given."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def __call__(self, text: str) -> int:
        number = int(text) if text.isdigit() else 0
        if number < 1 or (self._most is not None and number > self._most):
            to = f" to {self._most}" if self._most else ""
            raise argparse.ArgumentTypeError(f"a whole number from 1{to} is needed, got {text!r}")
        return number


def named_value(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE. A value that is valid JSON is read as JSON, any other stays a string."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"NAME=VALUE is needed, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def picture_path(text: str) -> Path:
    """Accept only a PNG file or a folder, to catch a question that stands here by mistake."""
    if text.lower().endswith(".png") or text.endswith("/") or Path(text).is_dir():
        return Path(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a file ending in .png nor a folder; questions go before --timeline"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model and --dtype."""
    parser.add_argument(
        "--model",
        default=DEMO_MODEL,
        metavar="ID_OR_FOLDER",
        help=f"a hub id or a model folder (default: {DEMO_MODEL_NAME}, no download)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="default: %(default)s")


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --max-tokens, the length of the longest answer."""
    parser.add_argument(
        "--max-tokens",
        type=WholeNumber(),
        default=default,
        metavar="N",
        help=f"longest answer ({default})",
    )
