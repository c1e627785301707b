"""How commands reach a running server."""

from __future__ import annotations

import argparse
import os
from urllib.parse import urlsplit

from ragcache_cli.errors import CommandError
from ragcache_engine.dashboard import ServerObserver

OPERATOR_KEY = "RAGCACHE_OPERATOR_KEY"
"""The environment variable with an operator's key."""


def observer_of(parsed: argparse.Namespace) -> ServerObserver:
    """Return an observer of the server that the arguments name. Raises CommandError."""
    url: str = parsed.url if "//" in parsed.url else f"http://{parsed.url}"
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise CommandError(f"{parsed.url!r} is no URL of a server, such as http://localhost:8000")
    api_key = read_api_key(parsed.api_key_env)
    operator_key = os.environ.get(OPERATOR_KEY)
    # Where keys are in use, the metrics want one, too.
    return ServerObserver(url, operator_key, api_key or operator_key)


def read_api_key(variable: str | None) -> str | None:
    """Return the key that an environment variable holds; None without a variable. Raises CommandError."""
    api_key = os.environ.get(variable) if variable else None
    if variable and not api_key:
        raise CommandError(f"the environment variable {variable} is not set")
    return api_key
