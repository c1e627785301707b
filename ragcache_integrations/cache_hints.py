"""Reads the hints for vendors' caches that messages carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ragcache_engine import InvalidArgument, cache_point

DEFAULT_S = 300.0
"""How long vendors keep a prompt that does not say so."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def mark_of(hint: Any) -> str:
    """Return the text that marks a cache point, of a hint such as {"type": "ephemeral", "ttl": "1h"}.

    A time that nobody can read counts as five minutes, as none does.
    """
    told = hint.get("ttl") if isinstance(hint, Mapping) else getattr(hint, "ttl", None)
    read = re.fullmatch(r"\s*(\d{1,9})\s*([smhd]?)\s*", str(told))
    try:
        return cache_point(float(read[1]) * _UNITS_S[read[2] or "s"] if read else DEFAULT_S)
    except InvalidArgument:
        return cache_point(DEFAULT_S)
