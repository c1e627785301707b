"""Finds in vLLM's log why its processes ended."""

from __future__ import annotations

import re
from pathlib import Path

LAST_LINES = 8
"""How many lines to quote where no error is found."""

MESSAGE_LINES = 4
"""How many lines of an error's message to quote."""

MOST_BYTES = 1 << 20
"""How much of the log's end to look at."""

_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b(?:: .*)?$")
_RECORD = re.compile(r"\d\d:\d\d:\d\d ")
_LONGEST_LINE = 400


def quote_cause(path: Path, since_bytes: int = 0) -> list[str]:
    """Return the lines of the first error in the log, or the log's last lines if there is none.

    The first, because each process that waits for another one raises an error of its own when that
    one fails.
    since_bytes: where in the file to begin.
    """
    lines = _read_lines(path, since_bytes)
    for number, line in enumerate(lines):
        if _ERROR.match(line):
            return [line, *_rest_of_message(lines[number + 1 : number + MESSAGE_LINES])]
    return [line for line in lines if line.strip()][-LAST_LINES:]


def _rest_of_message(lines: list[str]) -> list[str]:
    rest = []
    for line in lines:
        if not line.strip() or _RECORD.match(line) or line.startswith("Traceback"):
            break
        rest.append(line)
    return rest


def _read_lines(path: Path, since_bytes: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(since_bytes, path.stat().st_size - MOST_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.rstrip()[:_LONGEST_LINE] for line in text.splitlines()]
