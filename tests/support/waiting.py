"""Waits for what other threads do, as long as a slow machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(is_so: Callable[[], object]) -> bool:
    """Ask until it is so, for half a minute at most; return whether it is."""
    deadline = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    return bool(is_so())
