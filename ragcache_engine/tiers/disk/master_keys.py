"""Reads the keys that a disk cache is encrypted with from where a setting says."""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from pathlib import Path

from ragcache_engine.errors import ConfigError

KEY_BYTES = 32
"""AES-256 has keys of so many bytes."""

COMMAND_S = 30.0
"""How long a command may take to say the key."""


def read_master_keys(source: str) -> list[bytes]:
    """Return the master keys, the one to write with first.

    source: env:NAME, file:PATH or command:PROGRAM ARGUMENTS, which gives lines of one key each: 32
      random bytes as base64 or as 64 hexadecimal digits.
    Raises ConfigError, which quotes nothing of what it read.
    """
    keys = [
        _read_key(line.strip(), number, source)
        for number, line in enumerate(_read(source).splitlines(), 1)
        if line.strip()
    ]
    if not keys:
        raise ConfigError(f"{source} gives no key: make one with `openssl rand -base64 32`")
    return [*dict.fromkeys(keys)]


def _read(source: str) -> str:
    kind, _, rest = source.partition(":")
    try:
        if kind == "env":
            return os.environ.get(rest, "")
        if kind == "file":
            return Path(rest).expanduser().read_text(encoding="utf-8")
        told = subprocess.run(
            rest, shell=True, check=True, stdout=subprocess.PIPE, text=True, timeout=COMMAND_S
        )
        return told.stdout
    except (OSError, UnicodeError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"the key of the disk cache cannot be read from {source}: {type(error).__name__}"
        ) from None


def _read_key(line: str, number: int, source: str) -> bytes:
    try:
        key = (
            bytes.fromhex(line)
            if len(line) == 2 * KEY_BYTES
            else base64.b64decode(line, validate=True)
        )
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"line {number} of {source} is no key: a key is {KEY_BYTES} random bytes as base64, as "
            f"`openssl rand -base64 {KEY_BYTES}` makes them, or as {2 * KEY_BYTES} hexadecimal digits"
        )
    return key
