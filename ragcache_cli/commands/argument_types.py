"""Argument types and arguments that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from ragcache_cli.models import DEMO_MODEL, DEMO_MODEL_NAME
from ragcache_engine import EngineConfig

DTYPES = ("auto", "float32", "bfloat16", "float16")
DTYPE_HELP = "the type of the model's numbers; auto: its own (%(default)s)"


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


def size_in_bytes(text: str) -> int:
    """Read a size such as 32MiB."""
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"a size such as 32MiB is needed, got {text!r}")
    return size


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
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help=DTYPE_HELP)


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Add --corpus, a folder of the user's own files."""
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="txt, md, rst, html, jsonl, pdf and docx files, at any depth; the index is kept there too",
    )


def add_top_k(parser: argparse.ArgumentParser) -> None:
    """Add --top-k, how many passages are found for a question."""
    parser.add_argument(
        "--top-k",
        type=WholeNumber(),
        default=3,
        metavar="K",
        help="how many passages a question gets (%(default)s)",
    )


def add_disk_cache_place(parser: argparse.ArgumentParser) -> None:
    """Add --disk-cache-dir, --disk-cache-key and --shared-cache."""
    parser.add_argument(
        "--disk-cache-dir",
        type=Path,
        metavar="FOLDER",
        help="where the disk cache lies, which engines may share (kv in $RAGCACHE_HOME)",
    )
    parser.add_argument(
        "--disk-cache-key",
        metavar="SOURCE",
        help="encrypt the disk cache's files with the key from env:NAME, file:PATH or command:PROGRAM "
        "ARGUMENTS (default: they are not encrypted)",
    )
    parser.add_argument(
        "--shared-cache",
        metavar="URL",
        help="a store that several hosts share below their disk caches, such as redis://host:6379 or "
        "s3://bucket/prefix (default: none)",
    )


SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def duration(text: str) -> float:
    """Accept a time such as 90min, 12h or 30d; return its seconds."""
    unit = text.lstrip("0123456789.")
    with contextlib.suppress(ValueError, KeyError):
        seconds = float(text.removesuffix(unit)) * SECONDS[unit]
        if seconds > 0:
            return seconds
    raise argparse.ArgumentTypeError(f"a time such as 90min, 12h or 30d is needed, got {text!r}")


def share(text: str) -> float:
    """Accept a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"a number from 0 to 1 is needed, got {text!r}")
    return number


REUSE_SETTINGS = ("reuse", "recompute_ratio", "donors", "donor_dtype", "missing_donors")
"""Fields of EngineConfig for which `add_reuse` adds an argument of the same name."""


def add_reuse(
    parser: argparse.ArgumentParser, *, with_donors: bool = True, answers: bool = False
) -> None:
    """Add arguments for reuse at any position. One that is not given keeps EngineConfig's default.

    with_donors: leave it out where requests themselves say what their documents are stored behind.
    answers: whether the command's own engine answers questions; then also add --missing-donors.
    """
    parser.add_argument(
        "--reuse",
        choices=("prefix", "anywhere"),
        help="anywhere: reuse documents at any position; answers are then approximate (prefix)",
    )
    parser.add_argument(
        "--recompute-ratio",
        type=share,
        metavar="R",
        help="with anywhere: the share of a reused document to compute anew, 0 to 1 (calibrated, or 0.1)",
    )
    parser.add_argument(
        "--donor-dtype",
        choices=("auto", "int8"),
        help="with anywhere: keep donors as the cache keeps all, or in eight bits a number (auto)",
    )
    if with_donors:
        parser.add_argument(
            "--donors",
            choices=("neighbours", "alone", "any"),
            help="with anywhere: borrow documents from behind their nearest one, alone, or from any "
            "prompt they stood in (neighbours)",
        )
    if answers:
        parser.add_argument(
            "--missing-donors",
            choices=("later", "compute"),
            help="with anywhere: answer exactly and prepare new documents while nobody asks, or prepare "
            "them before the answer (later)",
        )


def reuse_settings(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of EngineConfig that the arguments of `add_reuse` were given."""
    chosen = {name: getattr(parsed, name, None) for name in REUSE_SETTINGS}
    return {name: value for name, value in chosen.items() if value is not None}


ENGINE_SETTINGS = ("device_cache", "host_cache")
"""Fields of EngineConfig for which `add_engine` adds an argument of the same name."""


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add what an engine may need more of, or less: memory, time, and arguments for vLLM."""
    parser.add_argument(
        "--device-cache",
        metavar="SIZE",
        help="device memory for the cache, such as 2GiB (chosen for the machine)",
    )
    parser.add_argument(
        "--host-cache",
        metavar="SIZE",
        help="host memory for copies of what the device computed (chosen for the machine)",
    )
    parser.add_argument(
        "--request-timeout",
        type=float,
        metavar="SECONDS",
        help="give a prompt up if the model shows no token for so long "
        f"({EngineConfig.model_fields['request_timeout_s'].default:g})",
    )
    parser.add_argument(
        "--vllm-arg",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=VALUE",
        help="an argument of vLLM's, such as max_model_len=4096; may be given again",
    )


def engine_settings(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of EngineConfig that the arguments of `add_engine` were given."""
    chosen = {name: getattr(parsed, name) for name in ENGINE_SETTINGS}
    chosen["request_timeout_s"] = parsed.request_timeout
    chosen["vllm_args"] = dict(parsed.vllm_arg) or None
    return {name: value for name, value in chosen.items() if value is not None}


def add_max_tokens(parser: argparse.ArgumentParser, default: int) -> None:
    """Add --max-tokens, the length of the longest answer."""
    parser.add_argument(
        "--max-tokens",
        type=WholeNumber(),
        default=default,
        metavar="N",
        help=f"longest answer ({default})",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add URL, the server to look at, and --api-key-env."""
    parser.add_argument("url", metavar="URL", help="such as http://localhost:8000")
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="the environment variable with the server's API key, if it wants one",
    )
