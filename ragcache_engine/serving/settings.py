"""The environment variables that bring a server its keys and limits. `ragcache serve` sets them.

vLLM loads the doors by their name alone, with no room for settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragcache_engine.errors import ConfigError

OPERATOR_KEY = "RAGCACHE_OPERATOR_KEY"
"""An operator's key, or its digest as in the file of keys."""

KEYS_FILE = "RAGCACHE_KEYS"
"""The path of the file of keys."""

MAX_BODY, MAX_REQUESTS = "RAGCACHE_MAX_BODY", "RAGCACHE_MAX_REQUESTS"
MAX_CORPORA = "RAGCACHE_MAX_CORPORA"
"""The limits, as whole numbers."""

CORPORA_FOLDER = "RAGCACHE_CORPORA"
"""A folder of files NAME.jsonl: the corpora that are everybody's from the start."""


LEARN = "RAGCACHE_LEARN_DOCUMENTS"
"""With 1, texts that recur in a tenant's prompts become documents by themselves."""


EMBEDDINGS, EMBEDDINGS_MODEL = "RAGCACHE_EMBEDDINGS", "RAGCACHE_EMBEDDINGS_MODEL"
"""What embeds documents for which no client told vectors; see corpora.embedders.make_embedder."""

EMBEDDINGS_KEY = "RAGCACHE_EMBEDDINGS_KEY"
"""The API key of the server that embeds."""


KEPT_SHARE = "RAGCACHE_KEPT_SHARE"
"""Which part of the host tier, and of the disk tier, may be kept from eviction, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one request, and all of them together, may take.

    body_bytes: the most bytes in a request's body.
    requests: the most requests with a body at a time, waiting ones included; None: any number.
    corpora_bytes: how much memory all registered documents may take.
    kept_share: which part of the host tier, and of the disk tier, may be kept from eviction.
    """

    body_bytes: int = 32 << 20
    requests: int | None = None
    corpora_bytes: int = 1 << 30
    kept_share: float = 0.5


def read_limits(environ: Mapping[str, str]) -> Limits:
    """Return the limits that the environment sets. Raises ConfigError for what is no number."""
    numbers: dict[str, Any] = {}
    known = {MAX_BODY: "body_bytes", MAX_REQUESTS: "requests", MAX_CORPORA: "corpora_bytes"}
    for variable, name in known.items():
        if told := environ.get(variable):
            if not told.isdigit() or int(told) < 1:
                raise ConfigError(f"{variable} must be a whole number above 0, got {told!r}")
            numbers[name] = int(told)
    if told := environ.get(KEPT_SHARE):
        try:
            numbers["kept_share"] = float(told)
        except ValueError:
            numbers["kept_share"] = -1.0
        if not 0 <= numbers["kept_share"] <= 1:
            raise ConfigError(f"{KEPT_SHARE} must be a number from 0 to 1, got {told!r}")
    return Limits(**numbers)
